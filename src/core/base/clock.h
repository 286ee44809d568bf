// Calls to come at a time of a Clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "tdock/clock.h"

namespace tdock {

// One future call by a clock that outlives it. The call must keep alive what it uses, or be able to find it gone,
// because cancelling does not wait for it (see Clock::CancelAlarm). Not thread-safe.
class Alarm {
 public:
  explicit Alarm(Clock& clock) : clock_(clock) {}
  ~Alarm() { Cancel(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Replaces what was set before. False, and no call, if `at` has already passed.
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
  // Removes and returns the first alarm if its time has come; otherwise null.
  std::function<void()> TakeDue(absl::Time now) {
    if (calls_.empty() || Next() > now) return nullptr;
    return std::move(calls_.extract(calls_.begin()).mapped());
  }

 private:
  uint64_t last_ = 0;
  std::map<Clock::AlarmId, std::function<void()>> calls_;
};

}  // namespace tdock
