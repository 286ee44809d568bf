#include "base/clock.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace tdock {
namespace {

using SteadyClock = std::chrono::steady_clock;

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
  {
    MutexLock lock(mu_);
    if (now_ >= deadline) return;
    ++waiters_;
    changed_.NotifyAll();
  }
  // Advance() does not know the condition variables that wait here, so each looks again every millisecond.
  cv.WaitUntil(mu, SteadyClock::now() + std::chrono::milliseconds(1));
  MutexLock lock(mu_);
  --waiters_;
}

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(mu_);
  now_ += by;
}

void FakeClock::AwaitWaiters(int count) {
  MutexLock lock(mu_);
  while (waiters_ < count) changed_.Wait(mu_);
}

}  // namespace tdock
