// Where clients come in: it listens, and lets in whoever shows the token. For this module only.
//
//   connect ──► pending ── greeting, a look at the first request ──► let in: gRPC has the connection
//                        └─ answered without gRPC, or closed
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rpc/admission.h"
#include "core/rpc/endpoint.h"
#include "core/rpc/pending_connection.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls_session.h"

namespace tdock::rpc {

struct ListenerOptions {
  AdmissionRules rules = {};
  std::shared_ptr<const TlsIdentity> identity = nullptr;  // null: plain TCP
  // Connections that were not let in yet; of more, the oldest is closed.
  size_t max_pending = 256;
  // How long one may take until its first request is there.
  std::chrono::milliseconds patience{20'000};
};

// One thread for all connections that were not let in: none of them costs more than Admission::kMostBytes and what TLS
// keeps, and none is waited for. Its methods are for one thread.
class Listener {
 public:
  // Unavailable: the address is in use. ResourceExhausted: no descriptor is left.
  static absl::StatusOr<std::unique_ptr<Listener>> Make(const Endpoint& endpoint, ListenerOptions options);
  ~Listener() { Stop(); }

  // Once: from now on, connections are accepted. `admit` is called on the listener's thread and must not block.
  void Start(std::function<void(Admitted)> admit);
  // No connection is let in any more; those that were not are closed. May be repeated.
  void Stop();

  int port() const { return port_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Entry {
    PendingConnection pending;
    Time deadline;
  };
  using PendingConnections = std::map<uint64_t, Entry>;

  Listener(ListenerOptions options, ListeningSockets listening, Socket poll_set, Socket stop);

  void Run();
  void Accept(const Socket& socket);
  void Welcome(Socket socket);
  void MakeRoom();
  void Advance(uint64_t id, bool ended);
  void CloseOverdue();
  int TimeoutMs() const;
  // Whether the listening sockets are waited for.
  bool Watch(bool accepting);

  const ListenerOptions options_;
  const int port_;
  const Socket poll_set_;
  const Socket stop_;
  std::thread thread_;

  // Of the thread.
  std::vector<Socket> sockets_;
  std::function<void(Admitted)> admit_;
  PendingConnections pending_;  // in the order in which they came
  uint64_t last_;
  std::optional<Time> pause_ends_;  // until then, nothing is accepted
  std::vector<char> scratch_;
};

}  // namespace tdock::rpc
