// A dock that other processes connect to: what `tdock dock serve` runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/dock.h"
#include "tdock/fields.h"
#include "tdock/local_dock.h"

namespace tdock {

struct DockServerOptions {
  // "host:port" to listen on: an IPv6 address in brackets, port 0 for any free port; empty: no TCP.
  std::string listen = {};
  // The path of a Unix socket, whose clients use shared memory; empty: none. Only the same user may connect.
  std::string socket = {};
  // How much memory all cells may occupy, including those that only views keep; 0: no limit. Fragmentation comes on
  // top, so that the server takes at most twice as much: docs/service.md says what counts. A partition with more than
  // 256 KiB needs a file descriptor for each of its segments: with thousands of them, raise RLIMIT_NOFILE.
  uint64_t memory_bytes = 0;
  // The token that clients must present over TCP: the text itself, or a file that holds it.
  std::string token = {};
  std::string token_file = {};
  // Paths of PEM files, for TCP: with a certificate and its key, connections are encrypted; with a CA, clients must
  // present a certificate signed by it.
  std::string tls_certificate = {};
  std::string tls_key = {};
  std::string tls_ca = {};
  // Accepts unauthenticated clients: otherwise a server beyond the loopback interface needs a token or a CA.
  bool insecure = false;
  // How long a session outlives its last connection.
  absl::Duration session_grace = absl::Seconds(1);
  LocalDockOptions dock = {};
  // Called with a sentence for a log when a thread or a lock of the server has been stalled for `stall_after`, and when
  // it continues; and when connections cannot be accepted for lack of descriptors or memory, each time the number of
  // attempts has doubled, and when they can again. Runs on threads of the server, maybe on several at the same time, so
  // it must be thread-safe and return soon.
  std::function<void(const std::string&)> on_stall = {};
  absl::Duration stall_after = absl::Seconds(5);

  TDOCK_FIELDS(DockServerOptions, listen, socket, memory_bytes, token, token_file, tls_certificate, tls_key, tls_ca,
               insecure, session_grace, dock, on_stall, stall_after)
};

struct DockServerCounts {
  int64_t sessions = 0;
  int64_t calls_under_way = 0;
  int64_t calls = 0;  // since the start
  int64_t pinned_answers = 0;
  int64_t leases = 0;
  int64_t memory_bytes = 0;  // occupied by cells: what DockServerOptions::memory_bytes limits
  int64_t arena_bytes = 0;  // shared memory in use and cached: the cells, the free space between them, and spare memory
  int64_t accept_failures = 0;  // attempts to accept a connection without descriptors or memory for it, since the start
};

// Thread-safe.
class DockServer {
 public:
  virtual ~DockServer() = default;  // shuts down at once

  // Errors: FailedPrecondition for a server that would accept unauthenticated clients, InvalidArgument and NotFound for
  // wrong files and addresses, Unavailable or AlreadyExists for those that are in use.
  static absl::StatusOr<std::unique_ptr<DockServer>> Start(const DockServerOptions& options);

  // The same dock, for this process.
  virtual Dock& dock() = 0;
  // The "host:port" of TCP; empty without TCP.
  virtual std::string tcp_address() const = 0;
  // The address for ConnectDock: the socket's if there is one, otherwise that of TCP.
  virtual std::string address() const = 0;
  // Warnings about the server's security, in sentences.
  virtual std::vector<std::string> warnings() const = 0;
  virtual DockServerCounts counts() = 0;

  // OK if the server answers `within` that time; otherwise Unavailable, saying what is stalled. Returns at once if a
  // stall is already known.
  virtual absl::Status CheckHealth(absl::Duration within) = 0;
  // What has been stalled for `stall_after` or longer, in sentences; and how many stalls there have been. Never wait.
  virtual std::vector<std::string> CurrentStalls() = 0;
  virtual int64_t stalls() = 0;

  // Refuses new calls, ends those that wait with Unavailable, and gives the others up to `drain` to finish. Returns
  // when everything is closed.
  virtual void Shutdown(absl::Duration drain) = 0;
};

}  // namespace tdock
