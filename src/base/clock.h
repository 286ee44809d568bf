// Time that a test can replace.
#pragma once

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

// A clock that stands still until it is advanced. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000)) : now_(start) {}

  absl::Time Now() override;
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu);

  void Advance(absl::Duration by) TDOCK_EXCLUDES(mu_);

  // Blocks until `count` threads are inside Wait(): after it returns, they hold no lock and have seen their condition
  // false.
  void AwaitWaiters(int count) TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Time now_ TDOCK_GUARDED_BY(mu_);
  int waiters_ TDOCK_GUARDED_BY(mu_) = 0;
};

}  // namespace tdock
