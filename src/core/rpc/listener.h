// Accepts connections, and admits those that show the token. For this module only.
//
//   connect ──► pending ── settings, peek at the first request ──► admitted: gRPC has the connection
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
#include "core/base/accept_failures.h"
#include "core/rpc/admission.h"
#include "core/rpc/endpoint.h"
#include "core/rpc/pending_connection.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls_session.h"

namespace tdock::rpc {

struct ListenerOptions {
  AdmissionRules rules = {};
  std::shared_ptr<const TlsIdentity> identity = nullptr;  // null: plain TCP
  // The most connections that are not admitted yet; beyond that, the oldest is closed.
  size_t max_pending = 256;
  // How long a connection may take to send its first request.
  std::chrono::milliseconds patience{20'000};
  // Is told of connections that cannot be accepted; must outlive the listener. May be null.
  AcceptFailures* failures = nullptr;
};

// One thread serves all connections that are not admitted yet: each costs at most Admission::kMostBytes and the state
// of TLS, and none blocks it. Its methods are for one thread.
class Listener {
 public:
  // Unavailable: the address is in use. ResourceExhausted: no descriptor is left.
  static absl::StatusOr<std::unique_ptr<Listener>> Make(const Endpoint& endpoint, ListenerOptions options);
  ~Listener() { Stop(); }

  // Call it once: from now on, connections are accepted. `admit` is called on the listener's thread and must not block.
  void Start(std::function<void(Admitted)> admit);
  // Admits no more connections, and closes those that are pending. May be called again.
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

  // Owned by the thread.
  std::vector<Socket> sockets_;
  std::function<void(Admitted)> admit_;
  PendingConnections pending_;  // in order of arrival
  uint64_t last_;
  std::optional<Time> pause_ends_;  // until then, no connection is accepted
  std::vector<char> scratch_;
};

}  // namespace tdock::rpc
