// Doing again what failed for a reason that may pass.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/rng.h"

namespace tdock {

// Waits grow from `initial` by `multiplier` up to `max`. Each is then made shorter by a random part of up to `jitter`
// of it, so that those who failed together do not come back together.
struct BackoffPolicy {
  absl::Duration initial = absl::Milliseconds(20);
  absl::Duration max = absl::Seconds(1);
  double multiplier = 2;
  double jitter = 0.5;  // from 0 to 1
};

// The waits of one series of attempts. Not thread-safe.
class Backoff {
 public:
  Backoff(const BackoffPolicy& policy, uint64_t seed) : policy_(policy), rng_(seed), next_(policy.initial) {}

  absl::Duration Next();
  // After a success: starts again at the initial wait.
  void Reset() { next_ = policy_.initial; }

 private:
  const BackoffPolicy policy_;
  Rng rng_;
  absl::Duration next_;
};

// Whether an error is of the connection, and may pass.
inline bool IsConnectionError(const absl::Status& status) { return absl::IsUnavailable(status); }

// Calls `attempt` until it succeeds, fails in a way that `is_retryable` denies, or there is no time for another wait
// before the deadline; returns its last status, with the number of attempts if it was retryable. `attempt` is called at
// least once, and has to heed the deadline by itself. Blocks in waits on the clock, not in a lock.
absl::Status Retry(Clock& clock, absl::Time deadline, Backoff backoff,
                   const std::function<bool(const absl::Status&)>& is_retryable,
                   const std::function<absl::Status()>& attempt);

}  // namespace tdock
