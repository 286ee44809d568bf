// The time that a dock goes by, which a program or a test can replace.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace tdock {

// The dock's own; a clock only hands them on.
class CondVar;
class Mutex;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;

  // Releases `mu`, waits until `cv` is notified or `deadline` has passed, and takes `mu` again. May return early for
  // no reason, so the caller loops on its condition. A clock of a program's own waits by the real one, until the real
  // time that it takes for the deadline: Real().Wait(cv, mu, Real().Now() + left).
  virtual void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;

  // The time of the call, and its number among those of one clock.
  using AlarmId = std::pair<absl::Time, uint64_t>;
  // Calls `call` once, when `at` has come, without a lock and on a thread that all alarms share, so it must be brief.
  // Returns none, and makes no call, if `at` has already passed.
  virtual std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) = 0;
  // The call no longer begins; one that has begun may still be running. Never waits for it, so it may be called from
  // it, and with any lock held. Does nothing if it has been called.
  virtual void CancelAlarm(const AlarmId& id) = 0;

  // The wall time at which the process started, advanced by the monotonic clock: setting the machine's clock neither
  // expires nor prolongs anything.
  static Clock& Real();
};

}  // namespace tdock
