#include "tdock/fork_guard.h"

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/rpc/forked.h"
#include "core/rpc/in_use.h"
#include "dock/service/remote/pausable_connection.h"

namespace tdock {

void ForkGuard::Connections::Add(service::PausableConnection* connection) {
  MutexLock lock(mu_);
  all_.insert(connection);
}

void ForkGuard::Connections::Remove(service::PausableConnection* connection) {
  MutexLock lock(mu_);
  all_.erase(connection);
}

bool ForkGuard::Connections::Pause(absl::Time deadline) {
  MutexLock lock(mu_);
  for (service::PausableConnection* const connection : all_) connection->Pause(deadline);
  while (rpc::IsInUse()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

void ForkGuard::Connections::Resume(absl::Time deadline) {
  MutexLock lock(mu_);
  // Concurrently, so that none waits for another's server.
  std::vector<std::jthread> threads;
  for (service::PausableConnection* const connection : all_) {
    threads.emplace_back([connection, deadline] { connection->Resume(deadline); });
  }
}

ForkGuard::ForkGuard() : connections_(std::make_unique<Connections>()) {}
ForkGuard::~ForkGuard() = default;

bool ForkGuard::Prepare(absl::Duration within) { return connections_->Pause(absl::Now() + within); }
void ForkGuard::Resume() { connections_->Resume(absl::Now() + absl::Seconds(1)); }

absl::Status ForkGuard::BeginChild() {
  if (rpc::IsInUse()) {
    return absl::FailedPreconditionError(
        "this process was forked while gRPC was in use by a TCP server or by a call that did not end, and cannot "
        "use it: connect to the server's Unix socket, or start a new process instead of forking");
  }
  return rpc::TakeOwnPollSet();
}

}  // namespace tdock
