#include "core/base/clock.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/time/clock.h"

namespace tdock {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Keeps the sum of a time and a wait below the end of the steady clock's range; who waits loops.
constexpr absl::Duration kLongestWait = absl::Hours(24);

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return start_wall_ + absl::FromChrono(SteadyClock::now() - start_steady_); }

  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    const absl::Duration left = std::min(deadline - Now(), kLongestWait);
    cv.WaitUntil(mu, SteadyClock::now() + absl::ToChronoNanoseconds(left));
  }

  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    if (at <= Now()) return std::nullopt;
    State& state = *state_;
    MutexLock lock(state.mu);
    // Runs as long as the process: the clock is never destroyed.
    if (!std::exchange(state.started, true)) std::thread([this, &state] { CallAlarms(state); }).detach();
    if (at < state.alarms.Next()) state.sooner.NotifyOne();
    return state.alarms.Add(at, std::move(call));
  }

  void CancelAlarm(const AlarmId& id) override {
    State& state = *state_;
    MutexLock lock(state.mu);
    state.alarms.Remove(id);
  }

  // In the child of a fork, whose parent's thread may have held the lock, and is not there.
  void ForgetAlarms() { state_ = new State; }

 private:
  struct State {
    Mutex mu;
    CondVar sooner;
    bool started TDOCK_GUARDED_BY(mu) = false;
    Alarms alarms TDOCK_GUARDED_BY(mu);
  };

  [[noreturn]] void CallAlarms(State& state) {
    for (;;) {
      std::function<void()> call;
      {
        MutexLock lock(state.mu);
        while ((call = state.alarms.TakeDue(Now())) == nullptr) Wait(state.sooner, state.mu, state.alarms.Next());
      }
      call();
    }
  }

  const absl::Time start_wall_ = absl::Now();
  const SteadyClock::time_point start_steady_ = SteadyClock::now();
  std::atomic<State*> state_ = new State;
};

}  // namespace

Clock& Clock::Real() {
  static RealClock* const clock = [] {
    static RealClock* const made = new RealClock;
    ::pthread_atfork(nullptr, nullptr, [] { made->ForgetAlarms(); });
    return made;
  }();
  return *clock;
}

}  // namespace tdock
