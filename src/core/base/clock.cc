#include "core/base/clock.h"

#include <algorithm>
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

  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override TDOCK_EXCLUDES(mu_) {
    if (at <= Now()) return std::nullopt;
    MutexLock lock(mu_);
    // Runs as long as the process: the clock is never destroyed.
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

}  // namespace tdock
