// For tests: time that passes at once while a stage hangs and nothing else goes on.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/testing/patience.h"

namespace tdock::trainer {

// The real time, moved forward where a thread hangs and all others that work have come to wait: whoever watches them
// sees what hangs, and never a stage that is only slow, however slow the machine is. Thread-safe.
class HangClock final : public Clock {
 public:
  // For trainer.stage_timeout, in seconds: longer than any stage takes, however slow the machine is.
  static constexpr int kPatience = 100;

  absl::Time Now() override {
    const std::lock_guard lock(working_->mu);
    return Real().Now() + skipped_;
  }
  // Who waits does not work. Nobody tells that the time has been moved, so it looks often.
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    working_->Remove(std::this_thread::get_id());
    const absl::Duration left = std::clamp(deadline - Now(), absl::ZeroDuration(), absl::Milliseconds(2));
    Real().Wait(cv, mu, Real().Now() + left);
  }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    return Real().SetAlarm(at - (Now() - Real().Now()), std::move(call));
  }
  void CancelAlarm(const AlarmId& id) override { Real().CancelAlarm(id); }

  // The calling thread works from now on, until it waits by this clock or ends.
  void NoteWork() {
    struct Leave {
      std::shared_ptr<Working> working;
      ~Leave() {
        if (working != nullptr) working->Remove(std::this_thread::get_id());
      }
    };
    thread_local Leave leave;
    leave.working = working_;
    const std::lock_guard lock(working_->mu);
    working_->threads.insert(std::this_thread::get_id());
  }

  // Does not come back before LetGo(); false if nobody calls that in five minutes. For a thread that works.
  bool Hang() {
    const auto limit = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(tdock::kPatience);
    std::unique_lock lock(working_->mu);
    ++hanging_;
    while (!let_go_ && std::chrono::steady_clock::now() < limit) {
      if (working_->threads.size() == hanging_) skipped_ += absl::Seconds(kPatience) / 4;
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    --hanging_;
    return let_go_;
  }
  // The run was given up, which ends the process of a real one: from now on nothing hangs.
  void LetGo() {
    const std::lock_guard lock(working_->mu);
    let_go_ = true;
    changed_.notify_all();
  }
  // Of the next run.
  void Begin() {
    const std::lock_guard lock(working_->mu);
    let_go_ = false;
  }

 private:
  // Outlives the clock where a thread that has worked does.
  struct Working {
    std::mutex mu;
    std::set<std::thread::id> threads;

    void Remove(std::thread::id id) {
      const std::lock_guard lock(mu);
      threads.erase(id);
    }
  };

  const std::shared_ptr<Working> working_ = std::make_shared<Working>();
  // Guarded by working_->mu.
  absl::Duration skipped_ = absl::ZeroDuration();
  size_t hanging_ = 0;
  bool let_go_ = false;
  std::condition_variable changed_;
};

}  // namespace tdock::trainer
