// A clock for tests, which they advance.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <optional>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace tdock {

// A clock that stands still until it is advanced. A wait on it ends when it is notified or the clock is advanced to its
// deadline, and only then: a forgotten wake-up makes the test hang, and it is aborted after 5 minutes of real time.
// Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000)) : now_(start) {}

  absl::Time Now() override;
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu);

  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override TDOCK_EXCLUDES(mu_);
  void CancelAlarm(const AlarmId& id) override TDOCK_EXCLUDES(mu_);

  // Calls the due alarms in order, and returns when they have returned and all due waiters have left Wait(). The caller
  // must hold no mutex that they need, and must not itself be called by an alarm.
  void Advance(absl::Duration by) TDOCK_EXCLUDES(mu_);

  // Blocks until `count` threads are inside Wait() or alarms are set, including those for the infinite future. The
  // threads have found their condition false, and are asleep for anyone who takes their mutex now.
  void AwaitWaiters(int count) TDOCK_EXCLUDES(mu_);

 private:
  using SteadyClock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kLongestTest{5};

  struct Waiter {
    CondVar& cv;
    absl::Time deadline;
  };

  // Whether somebody still waits for a time that has come; wakes them.
  bool WakeThoseDueBy(absl::Time now) TDOCK_REQUIRES(mu_);
  // Calls one alarm, if there is one for a time that has come.
  bool CallOneDueBy(absl::Time now) TDOCK_EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  absl::Time now_ TDOCK_GUARDED_BY(mu_);
  std::list<Waiter> waiters_ TDOCK_GUARDED_BY(mu_);
  Alarms alarms_ TDOCK_GUARDED_BY(mu_);
  int calls_running_ TDOCK_GUARDED_BY(mu_) = 0;
};

inline absl::Time FakeClock::Now() {
  MutexLock lock(mu_);
  return now_;
}

inline void FakeClock::Wait(CondVar& cv, Mutex& mu, absl::Time deadline) {
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

inline std::optional<Clock::AlarmId> FakeClock::SetAlarm(absl::Time at, std::function<void()> call) {
  MutexLock lock(mu_);
  if (at <= now_) return std::nullopt;
  changed_.NotifyAll();
  return alarms_.Add(at, std::move(call));
}

inline void FakeClock::CancelAlarm(const AlarmId& id) {
  MutexLock lock(mu_);
  alarms_.Remove(id);
}

inline bool FakeClock::CallOneDueBy(absl::Time now) {
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

inline void FakeClock::Advance(absl::Duration by) {
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

inline bool FakeClock::WakeThoseDueBy(absl::Time now) {
  bool any = false;
  for (Waiter& waiter : waiters_) {
    if (waiter.deadline > now) continue;
    waiter.cv.NotifyAll();
    any = true;
  }
  return any;
}

inline void FakeClock::AwaitWaiters(int count) {
  const SteadyClock::time_point limit = SteadyClock::now() + kLongestTest;
  MutexLock lock(mu_);
  while (static_cast<int>(waiters_.size() + alarms_.size()) < count) {
    changed_.WaitUntil(mu_, limit);
    TDOCK_CHECK(SteadyClock::now() < limit, "fewer threads and alarms wait on a FakeClock than a test waits for");
  }
}

}  // namespace tdock
