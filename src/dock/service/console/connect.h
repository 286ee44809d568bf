// Options for connecting to the server of a dock.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::console {

inline constexpr int kDefaultPort = 7077;
inline constexpr absl::string_view kAddressVariable = "TDOCK_ADDRESS";

struct ConnectOptions {
  // host:port, [ipv6]:port or unix:/path.
  std::string address = {};
  // Paths; empty for none. The token file authenticates the client; tls_ca turns on TLS, and tls_cert with tls_key is
  // the client's certificate.
  std::string token_file = {};
  std::string tls_ca = {};
  std::string tls_cert = {};
  std::string tls_key = {};
  // How long to try to connect, and how long the server may take to answer beside the time that a call may wait.
  absl::Duration reconnect_for = absl::Seconds(5);
  absl::Duration answer_within = absl::Seconds(30);
};

// The dock of the server at an address.
using Connect = std::function<absl::StatusOr<std::unique_ptr<Dock>>(const ConnectOptions&)>;

// InvalidArgument, saying what would be right, for an address of neither form, for a certificate without its key or the
// reverse, and for TLS over a Unix socket.
absl::Status Check(const ConnectOptions& options);

struct HostPort {
  // Without brackets.
  std::string host = {};
  int port = 0;
};

// Parses "host:port" or "[ipv6]:port"; an empty host means 127.0.0.1. The port may be 0. InvalidArgument begins with
// `what`.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view what, absl::string_view text);
// The inverse.
std::string ToString(const HostPort& address);

}  // namespace tdock::console
