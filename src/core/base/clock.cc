#include "core/base/clock.h"

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/status.h"

namespace tdock {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestTest(100);

// Keeps the sum of a time and a wait below the end of the steady clock's range; who waits loops.
constexpr absl::Duration kLongestWait = absl::Hours(24);

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return start_wall_ + absl::FromChrono(SteadyClock::now() - start_steady_); }

  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    const absl::Duration left = std::min(deadline - Now(), kLongestWait);
    cv.WaitUntil(mu, SteadyClock::now() + absl::ToChronoNanoseconds(left));
  }

  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override TDOCK_EXCLUDES(mu_) {
    if (at <= Now()) return std::nullopt;
    MutexLock lock(mu_);
    // It runs as long as the process: the clock is never destroyed.
    if (!std::exchange(started_, true)) std::thread([this] { CallAlarms(); }).detach();
    if (at < alarms_.Next()) sooner_.NotifyOne();
    return alarms_.Add(at, std::move(call));
  }

  void CancelAlarm(const AlarmId& id) override TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    alarms_.Remove(id);
  }

 private:
  [[noreturn]] void CallAlarms() TDOCK_EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> call;
      {
        MutexLock lock(mu_);
        while ((call = alarms_.TakeDue(Now())) == nullptr) Wait(sooner_, mu_, alarms_.Next());
      }
      call();
    }
  }

  const absl::Time start_wall_ = absl::Now();
  const SteadyClock::time_point start_steady_ = SteadyClock::now();
  Mutex mu_;
  CondVar sooner_;
  bool started_ TDOCK_GUARDED_BY(mu_) = false;
  Alarms alarms_ TDOCK_GUARDED_BY(mu_);
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

std::optional<Clock::AlarmId> FakeClock::SetAlarm(absl::Time at, std::function<void()> call) {
  MutexLock lock(mu_);
  if (at <= now_) return std::nullopt;
  changed_.NotifyAll();
  return alarms_.Add(at, std::move(call));
}

void FakeClock::CancelAlarm(const AlarmId& id) {
  MutexLock lock(mu_);
  alarms_.Remove(id);
}

bool FakeClock::CallOneDueBy(absl::Time now) {
  std::function<void()> call;
  {
    MutexLock lock(mu_);
    call = alarms_.TakeDue(now);
    if (call == nullptr) return false;
    ++calls_running_;
  }
  call();
  MutexLock lock(mu_);
  --calls_running_;
  changed_.NotifyAll();
  return true;
}

void FakeClock::Advance(absl::Duration by) {
  absl::Time now;
  {
    MutexLock lock(mu_);
    now = now_ += by;
  }
  while (CallOneDueBy(now)) continue;
  MutexLock lock(mu_);
  // A waiter that is in the list may not sleep yet, and would miss the only notification. It cannot be waited for with
  // its mutex, which may be gone with its owner as soon as it has left the list.
  const SteadyClock::time_point limit = SteadyClock::now() + kLongestTest;
  while (WakeThoseDueBy(now) || calls_running_ > 0) {
    changed_.WaitUntil(mu_, SteadyClock::now() + std::chrono::milliseconds(1));
    TDOCK_CHECK(SteadyClock::now() < limit,
                "a thread or an alarm whose time has come on a FakeClock does not get its mutex");
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
  while (static_cast<int>(waiters_.size() + alarms_.size()) < count) {
    changed_.WaitUntil(mu_, limit);
    TDOCK_CHECK(SteadyClock::now() < limit, "fewer threads and alarms wait on a FakeClock than a test waits for");
  }
}

}  // namespace tdock
