// Repeating what failed for a possibly temporary reason.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/rng.h"

namespace tdock {

// Waits grow from `initial` by `multiplier` up to `max`. Each is then shortened by a random fraction of up to `jitter`,
// so that clients that failed together do not retry together.
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

// Calls `attempt` until it succeeds, fails with a status that `is_retryable` rejects, or another wait would exceed the
// deadline; returns its last status, with the number of attempts if that was retryable. `attempt` is called at least
// once, and must respect the deadline itself. Blocks in waits on the clock, without a lock.
absl::Status Retry(Clock& clock, absl::Time deadline, Backoff backoff,
                   const std::function<bool(const absl::Status&)>& is_retryable,
                   const std::function<absl::Status()>& attempt);

}  // namespace tdock
