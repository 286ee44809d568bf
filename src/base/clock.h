// Time that a test can replace.
#pragma once

#include <list>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace tdock {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;

  // Releases `mu`, waits until `cv` is notified or `deadline` has passed, and takes `mu` again. May return early for
  // no reason, so the caller loops on its condition.
  virtual void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) TDOCK_REQUIRES(mu) = 0;

  // The wall time at which the process started, advanced by the monotonic clock: setting the machine's clock neither
  // expires nor prolongs anything.
  static Clock& Real();
};

// A clock that stands still until it is advanced. A wait on it ends when it is notified or when the clock has been
// advanced to its deadline, and not otherwise: a wake-up that is forgotten keeps the waiter. A test that hangs so is
// aborted after 100 s of real time. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000)) : now_(start) {}

  absl::Time Now() override;
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu);

  // Returns when those whose deadline has come have left Wait(). The caller must hold no mutex that they wait with.
  void Advance(absl::Duration by) TDOCK_EXCLUDES(mu_);

  // Blocks until `count` threads are inside Wait(): they have seen their condition false, and whoever takes their mutex
  // now finds them asleep.
  void AwaitWaiters(int count) TDOCK_EXCLUDES(mu_);

 private:
  struct Waiter {
    CondVar& cv;
    absl::Time deadline;
  };

  // Whether somebody still waits for a time that has come; wakes them.
  bool WakeThoseDueBy(absl::Time now) TDOCK_REQUIRES(mu_);

  Mutex mu_;
  CondVar changed_;
  absl::Time now_ TDOCK_GUARDED_BY(mu_);
  std::list<Waiter> waiters_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
