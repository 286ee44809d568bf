#include "core/base/retry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace tdock {
namespace {

void SleepUntil(Clock& clock, absl::Time time) {
  Mutex mu;
  CondVar never;
  MutexLock lock(mu);
  while (clock.Now() < time) clock.Wait(never, mu, time);
}

}  // namespace

absl::Duration Backoff::Next() {
  const absl::Duration wait = std::min(next_, policy_.max);
  next_ = std::min(next_ * policy_.multiplier, policy_.max);
  return wait * (1 - policy_.jitter * rng_.Uniform());
}

absl::Status Retry(Clock& clock, absl::Time deadline, Backoff backoff,
                   const std::function<bool(const absl::Status&)>& is_retryable,
                   const std::function<absl::Status()>& attempt) {
  for (int64_t attempts = 1;; ++attempts) {
    const absl::Status status = attempt();
    if (status.ok() || !is_retryable(status)) return status;
    const absl::Time again = clock.Now() + backoff.Next();
    if (again >= deadline) {
      return Annotate(status, absl::StrCat("gave up after ", attempts, attempts == 1 ? " attempt" : " attempts"));
    }
    SleepUntil(clock, again);
  }
}

}  // namespace tdock
