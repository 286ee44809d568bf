// A dock that other processes use: what `tdock dock serve` runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/dock.h"
#include "tdock/local_dock.h"

namespace tdock {

struct DockServerOptions {
  // "host:port" to serve gRPC at, an IPv6 address in brackets, port 0 for any; empty: not over TCP.
  std::string listen = {};
  // The path of a Unix socket to serve shared memory at; empty: none. Only the same user may connect.
  std::string socket = {};
  // How much memory all cells may occupy, those included that only views keep; 0: as much as there is. The free places
  // between them come on top, so that the server takes at most twice as much: docs/service.md says what counts. A
  // partition with more than 256 KiB needs a file descriptor for each of its segments: whoever has thousands of them
  // raises RLIMIT_NOFILE.
  uint64_t memory_bytes = 0;
  // What clients must show over TCP: the text itself, or a file that holds it.
  std::string token = {};
  std::string token_file = {};
  // Paths of PEM files, for TCP: with a certificate and its key, connections are encrypted; with a ca, clients must
  // show a certificate of it.
  std::string tls_certificate = {};
  std::string tls_key = {};
  std::string tls_ca = {};
  // Lets strangers in: without it, a server beyond the loopback interface needs a token or a ca.
  bool insecure = false;
  // How long a session outlives its last connection.
  absl::Duration session_grace = absl::Seconds(1);
  LocalDockOptions dock = {};
  // Told, in a sentence, when a thread or a lock of the server has stood still for so long, and when it goes on; by a
  // thread of the server's, which is to be let go on soon.
  std::function<void(const std::string&)> on_stall = {};
  absl::Duration stall_after = absl::Seconds(5);
};

struct DockServerCounts {
  int64_t sessions = 0;
  int64_t calls_under_way = 0;
  int64_t calls = 0;  // since the start
  int64_t pinned_answers = 0;
  int64_t leases = 0;
  int64_t memory_bytes = 0;  // that cells occupy: what DockServerOptions::memory_bytes limits
  int64_t arena_bytes = 0;   // these, the free places between them, and what is kept warm
};

// Thread-safe.
class DockServer {
 public:
  virtual ~DockServer() = default;  // shuts down at once

  // Errors: FailedPrecondition for a server that would let strangers in, InvalidArgument and NotFound for files and
  // addresses that are wrong, Unavailable or AlreadyExists for those that are in use.
  static absl::StatusOr<std::unique_ptr<DockServer>> Start(const DockServerOptions& options);

  // The same dock, for this process.
  virtual Dock& dock() = 0;
  // "host:port" of TCP; empty if there is none.
  virtual std::string tcp_address() const = 0;
  // What to give to ConnectDock: the socket, if there is one, or else the TCP address.
  virtual std::string address() const = 0;
  // What whoever starts the server should know about its security, in sentences.
  virtual std::vector<std::string> warnings() const = 0;
  virtual DockServerCounts counts() = 0;

  // Whether the server answers: Unavailable, saying what stands still, where that takes longer. At once, where it is
  // known.
  virtual absl::Status CheckHealth(absl::Duration within) = 0;
  // What has stood still for `stall_after` now, in sentences; and how often something has. Never wait.
  virtual std::vector<std::string> CurrentStalls() = 0;
  virtual int64_t stalls() = 0;

  // Refuses new calls and ends those that wait with Unavailable; lets the others finish for so long. Returns when all
  // is closed.
  virtual void Shutdown(absl::Duration drain) = 0;
};

}  // namespace tdock
