// Connections that can be closed for a while, and the guard that closes them.
#pragma once

#include <set>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "tdock/fork_guard.h"

namespace tdock::service {

// Thread-safe.
class PausableConnection {
 public:
  virtual ~PausableConnection() = default;

  // Closes it; calls that use it wait until it is resumed. Returns once it is completely closed, or at the deadline.
  virtual void Pause(absl::Time deadline) = 0;
  // Makes it again, if that is possible by the deadline. Has no effect if it is not paused.
  virtual void Resume(absl::Time deadline) = 0;
};

}  // namespace tdock::service

namespace tdock {

// Thread-safe.
class ForkGuard::Connections {
 public:
  static Connections& Of(ForkGuard& guard) { return *guard.connections_; }

  // These wait while the connections are paused or resumed.
  void Add(service::PausableConnection* connection) TDOCK_EXCLUDES(mu_);
  void Remove(service::PausableConnection* connection) TDOCK_EXCLUDES(mu_);

  // All of them. Returns whether nothing of gRPC is left in this process by the deadline.
  bool Pause(absl::Time deadline) TDOCK_EXCLUDES(mu_);
  void Resume(absl::Time deadline) TDOCK_EXCLUDES(mu_);

 private:
  // Also held while the connections are paused and resumed: none of them may come or go meanwhile.
  Mutex mu_;
  std::set<service::PausableConnection*> all_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
