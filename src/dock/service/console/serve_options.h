// What a server of a dock is started with.
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
  // Where to listen for TCP: HOST:PORT; port 0 takes a free one. Empty: nowhere.
  std::string listen = {};
  // The path of the Unix socket. Empty: none.
  std::string socket = {};
  // How much the cells of all partitions may occupy; 0: as much as there is.
  int64_t memory_bytes = 0;
  // Paths; empty for none. With tls_ca, clients must show a certificate that it signed.
  std::string token_file = {};
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_ca = {};
  // Serves beyond this machine without a token and without certificates of clients.
  bool insecure = false;
  // Where the status page and the metrics are, for StatusServer: HOST:PORT. Empty: nowhere.
  std::string metrics = {};
  // How long calls that are running when the server is asked to stop have until they are cancelled.
  absl::Duration drain = absl::Seconds(10);
  // How long leases, pins and calls of a client outlive its last connection.
  absl::Duration session_grace = absl::Seconds(1);
  // Of a program that started the server for itself: the server says nothing of a normal end, and however it ends, this
  // folder is removed, with its socket and token file if they are in it.
  std::string owned_folder = {};
};

// Returns when the server has ended.
using Serve = std::function<absl::Status(const ServeOptions&)>;

// "512MiB", "8GiB", "1.5TiB", "64KiB" or a number of bytes. InvalidArgument begins with `what`.
absl::StatusOr<int64_t> ParseBytes(absl::string_view what, absl::string_view text);

// $XDG_RUNTIME_DIR/tdock.sock, a folder that only its user may enter; without that variable, /tmp/tdock-UID.sock.
std::string DefaultSocket(absl::string_view runtime_dir, unsigned uid);

// InvalidArgument with everything that is wrong with the options, one thing a line.
absl::Status Check(const ServeOptions& options);

// One line each: where it listens, and what it does not do that one might expect.
std::string Describe(const ServeOptions& options);

}  // namespace tdock::console
