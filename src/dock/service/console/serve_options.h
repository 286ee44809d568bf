// The options of a dock server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dock/service/console/connect.h"

namespace tdock::console {

struct ServeOptions {
  // Where to listen for TCP: HOST:PORT; port 0 picks a free one. Empty: no TCP.
  std::string listen = {};
  // The path of the Unix socket. Empty: none.
  std::string socket = {};
  // How much memory the cells of all partitions may occupy; 0: no limit.
  int64_t memory_bytes = 0;
  // Paths; empty for none. With tls_ca, clients must present a certificate signed by it.
  std::string token_file = {};
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_ca = {};
  // Serves beyond this machine without a token or client certificates.
  bool insecure = false;
  // Where StatusServer listens for the status page and the metrics: HOST:PORT. Empty: nowhere.
  std::string metrics = {};
  // How long calls in progress get to finish when the server is asked to stop, before they are cancelled.
  absl::Duration drain = absl::Seconds(10);
  // How long leases, pins and calls of a client outlive its last connection.
  absl::Duration session_grace = absl::Seconds(1);
  // For a program that starts the server for itself: the server logs nothing about a normal end, and however it ends,
  // this folder is removed, with its socket and token file if they are in it.
  std::string owned_folder = {};
};

// Returns when the server has ended.
using Serve = std::function<absl::Status(const ServeOptions&)>;

// "512MiB", "8GiB", "1.5TiB", "64KiB" or a number of bytes. InvalidArgument begins with `what`.
absl::StatusOr<int64_t> ParseBytes(absl::string_view what, absl::string_view text);

// $XDG_RUNTIME_DIR/tdock.sock, a folder that only its user may enter; without that variable, /tmp/tdock-UID.sock.
std::string DefaultSocket(absl::string_view runtime_dir, unsigned uid);

// InvalidArgument with every problem of the options, one per line.
absl::Status Check(const ServeOptions& options);

}  // namespace tdock::console
