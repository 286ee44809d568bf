#include "base/clock.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "base/status.h"

namespace tdock {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestTest(100);

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return start_wall_ + absl::FromChrono(SteadyClock::now() - start_steady_); }

  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    // The cap keeps the sum below the end of the steady clock's range; the caller loops.
    const absl::Duration left = std::min(deadline - Now(), absl::Hours(24));
    cv.WaitUntil(mu, SteadyClock::now() + absl::ToChronoNanoseconds(left));
  }

 private:
  const absl::Time start_wall_ = absl::Now();
  const SteadyClock::time_point start_steady_ = SteadyClock::now();
};

}  // namespace

Clock& Clock::Real() {
  static RealClock* clock = new RealClock;
  return *clock;
}

absl::Time FakeClock::Now() {
  MutexLock lock(mu_);
  return now_;
}

void FakeClock::Wait(CondVar& cv, Mutex& mu, absl::Time deadline) {
  std::list<Waiter>::iterator self;
  {
    MutexLock lock(mu_);
    if (now_ >= deadline) return;
    self = waiters_.insert(waiters_.end(), {cv, deadline});
    changed_.NotifyAll();
  }
  const SteadyClock::time_point limit = SteadyClock::now() + kLongestTest;
  cv.WaitUntil(mu, limit);
  TDOCK_CHECK(SteadyClock::now() < limit, "nobody has woken a thread that waits on a FakeClock");
  MutexLock lock(mu_);
  waiters_.erase(self);
  changed_.NotifyAll();
}

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(mu_);
  const absl::Time now = now_ += by;
  // A waiter that is in the list may not sleep yet, and would miss the only notification. It cannot be waited for with
  // its mutex, which may be gone with its owner as soon as it has left the list.
  const SteadyClock::time_point limit = SteadyClock::now() + kLongestTest;
  while (WakeThoseDueBy(now)) {
    changed_.WaitUntil(mu_, SteadyClock::now() + std::chrono::milliseconds(1));
    TDOCK_CHECK(SteadyClock::now() < limit, "a thread whose time has come on a FakeClock does not get its mutex");
  }
}

bool FakeClock::WakeThoseDueBy(absl::Time now) {
  bool any = false;
  for (Waiter& waiter : waiters_) {
    if (waiter.deadline > now) continue;
    waiter.cv.NotifyAll();
    any = true;
  }
  return any;
}

void FakeClock::AwaitWaiters(int count) {
  const SteadyClock::time_point limit = SteadyClock::now() + kLongestTest;
  MutexLock lock(mu_);
  while (static_cast<int>(waiters_.size()) < count) {
    changed_.WaitUntil(mu_, limit);
    TDOCK_CHECK(SteadyClock::now() < limit, "fewer threads wait on a FakeClock than a test waits for");
  }
}

}  // namespace tdock
