#include "tdock/fork_guard.h"

#include <set>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/rpc/forked.h"
#include "core/rpc/in_use.h"
#include "dock/service/remote/pausable_connection.h"

namespace tdock {

struct ForkGuard::State {
  // Also held while the connections are paused and resumed: none of them may go meanwhile.
  Mutex mu;
  std::set<PausableConnection*> connections TDOCK_GUARDED_BY(mu);
};

ForkGuard::ForkGuard() : state_(std::make_unique<State>()) {}
ForkGuard::~ForkGuard() = default;

bool ForkGuard::Prepare(absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  MutexLock lock(state_->mu);
  for (PausableConnection* const connection : state_->connections) connection->Pause(deadline);
  while (rpc::IsInUse()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

void ForkGuard::Resume() {
  const absl::Time deadline = absl::Now() + absl::Seconds(1);
  MutexLock lock(state_->mu);
  // At the same time, so that none waits for another's server.
  std::vector<std::jthread> threads;
  for (PausableConnection* const connection : state_->connections) {
    threads.emplace_back([connection, deadline] { connection->Resume(deadline); });
  }
}

void ForkGuard::Add(PausableConnection* connection) {
  MutexLock lock(state_->mu);
  state_->connections.insert(connection);
}

void ForkGuard::Remove(PausableConnection* connection) {
  MutexLock lock(state_->mu);
  state_->connections.erase(connection);
}

absl::Status ForkGuard::BeginChild() {
  if (rpc::IsInUse()) {
    return absl::FailedPreconditionError(
        "this process was forked while gRPC was in use, by a server over TCP or by a call that did not end, and cannot "
        "use it: connect to the Unix socket of the server, or start the process anew instead of forking it");
  }
  return rpc::TakeOwnPollSet();
}

}  // namespace tdock
