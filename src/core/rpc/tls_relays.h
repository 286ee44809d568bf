// The threads that relay between TLS connections and gRPC. For this module only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/rpc/pending_connection.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls_relay.h"

namespace tdock::rpc {

// A thread and its connections. Thread-safe.
class RelayThread {
 public:
  // ResourceExhausted: no descriptor is left.
  static absl::StatusOr<std::unique_ptr<RelayThread>> Start();
  // Returns when the thread has stopped.
  ~RelayThread();

  // Ends all connections at that time, or earlier if gRPC has ended them all. The earliest time counts.
  void EndBy(std::chrono::steady_clock::time_point time) TDOCK_EXCLUDES(mu_);

  void Add(TlsRelay relay) TDOCK_EXCLUDES(mu_);

 private:
  using Time = std::chrono::steady_clock::time_point;

  RelayThread(Socket poll_set, Socket wake) : poll_set_(std::move(poll_set)), wake_(std::move(wake)) {}

  void Run();
  void Wake();
  // Requests of other threads.
  void TakeNews() TDOCK_EXCLUDES(mu_);
  void Turn(uint64_t id);
  // The connections whose clients do not read their last bytes.
  void EndOverdue();
  bool Watch(uint64_t name, int fd);

  const Socket poll_set_;
  const Socket wake_;
  std::thread thread_;

  Mutex mu_;
  std::vector<TlsRelay> added_ TDOCK_GUARDED_BY(mu_);
  std::optional<Time> end_by_ TDOCK_GUARDED_BY(mu_);

  // Owned by the thread.
  std::map<uint64_t, TlsRelay> relays_;
  std::set<uint64_t> busy_;    // have more to do at once
  std::set<uint64_t> ending_;  // gRPC has ended them
  uint64_t last_ = 0;
  std::optional<Time> ends_at_;
};

// Thread-safe.
class TlsRelays {
 public:
  static absl::StatusOr<std::unique_ptr<TlsRelays>> Start(int threads);
  // Ends all connections within half a second, in which gRPC's last bytes may still reach their clients.
  ~TlsRelays();

  // The socket for gRPC of a TLS connection. ResourceExhausted: no descriptor is left.
  absl::StatusOr<Socket> Add(Admitted admitted);

 private:
  std::vector<std::unique_ptr<RelayThread>> threads_;
  std::atomic<size_t> next_ = 0;
};

}  // namespace tdock::rpc
