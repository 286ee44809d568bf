// Time that a test can replace.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace tdock {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;

  // Releases `mu`, waits until `cv` is notified or `deadline` has passed, and takes `mu` again. May return early for
  // no reason, so the caller loops on its condition.
  virtual void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) TDOCK_REQUIRES(mu) = 0;

  // When, and which of those of one clock.
  using AlarmId = std::pair<absl::Time, uint64_t>;
  // Has `call` called once when `at` has come, without a lock, by a thread that others' alarms wait for: it should be
  // brief. None, and no call, if `at` has come already. See Alarm.
  virtual std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) = 0;
  // The call does not begin any more; one that has begun may still be running. Never waits for it: may be called from
  // it, and with any lock held. Does nothing for one that has been called.
  virtual void CancelAlarm(const AlarmId& id) = 0;

  // The wall time at which the process started, advanced by the monotonic clock: setting the machine's clock neither
  // expires nor prolongs anything.
  static Clock& Real();
};

// One call to come, of a clock that outlives it. What the call uses it must keep alive itself, or be able to find gone:
// cancelling does not wait for it (see Clock::CancelAlarm). Not thread-safe.
class Alarm {
 public:
  explicit Alarm(Clock& clock) : clock_(clock) {}
  ~Alarm() { Cancel(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Instead of what was set before. False, and no call, if `at` has come already.
  bool Set(absl::Time at, std::function<void()> call) {
    Cancel();
    id_ = clock_.SetAlarm(at, std::move(call));
    return id_.has_value();
  }
  void Cancel() {
    if (const auto id = std::exchange(id_, std::nullopt)) clock_.CancelAlarm(*id);
  }

 private:
  Clock& clock_;
  std::optional<Clock::AlarmId> id_;
};

// The alarms of a clock, in their order. Not thread-safe.
class Alarms {
 public:
  Clock::AlarmId Add(absl::Time at, std::function<void()> call) {
    const Clock::AlarmId id(at, ++last_);
    calls_.emplace(id, std::move(call));
    return id;
  }
  void Remove(const Clock::AlarmId& id) { calls_.erase(id); }
  size_t size() const { return calls_.size(); }
  // InfiniteFuture if there is none.
  absl::Time Next() const { return calls_.empty() ? absl::InfiniteFuture() : calls_.begin()->first.first; }
  // Takes out the first, if its time has come; null otherwise.
  std::function<void()> TakeDue(absl::Time now) {
    if (calls_.empty() || Next() > now) return nullptr;
    return std::move(calls_.extract(calls_.begin()).mapped());
  }

 private:
  uint64_t last_ = 0;
  std::map<Clock::AlarmId, std::function<void()>> calls_;
};

// A clock that stands still until it is advanced. A wait on it ends when it is notified or when the clock has been
// advanced to its deadline, and not otherwise: a wake-up that is forgotten keeps the waiter. A test that hangs so is
// aborted after 100 s of real time. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000)) : now_(start) {}

  absl::Time Now() override;
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu);

  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override TDOCK_EXCLUDES(mu_);
  void CancelAlarm(const AlarmId& id) override TDOCK_EXCLUDES(mu_);

  // Calls the alarms whose time has come, one after another, and returns when they have been called and those whose
  // deadline has come have left Wait(). The caller must hold no mutex that they need, and be no alarm's call.
  void Advance(absl::Duration by) TDOCK_EXCLUDES(mu_);

  // Blocks until `count` threads are inside Wait() or alarms are set, those for the infinite future included. The
  // threads have seen their condition false, and whoever takes their mutex now finds them asleep.
  void AwaitWaiters(int count) TDOCK_EXCLUDES(mu_);

 private:
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

}  // namespace tdock
