#include "runtime/dispatch/future.h"

#include "core/base/callback.h"

namespace tdock::runtime {

bool FutureValue::ready() const {
  MutexLock lock(state_->mu);
  return state_->result.has_value();
}

absl::StatusOr<Value> FutureValue::Get(absl::Time deadline) const {
  MutexLock lock(state_->mu);
  while (!state_->result.has_value()) {
    if (state_->clock.Now() >= deadline) {
      return absl::DeadlineExceededError("the call whose result was waited for is still running");
    }
    state_->clock.Wait(state_->changed, state_->mu, deadline);
  }
  return *state_->result;
}

void FutureValue::OnReady(std::function<void()> then) const {
  {
    MutexLock lock(state_->mu);
    if (!state_->result.has_value()) {
      state_->then.push_back(std::move(then));
      return;
    }
  }
  CheckNoLockHeld("a callback");
  then();
}

bool FutureValue::Set(absl::StatusOr<Value> result) const {
  std::vector<std::function<void()>> then;
  {
    MutexLock lock(state_->mu);
    if (state_->result.has_value()) return false;
    state_->result = std::move(result);
    then.swap(state_->then);
    state_->changed.NotifyAll();
  }
  CheckNoLockHeld("a callback");
  for (const std::function<void()>& call : then) call();
  return true;
}

}  // namespace tdock::runtime
