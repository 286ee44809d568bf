// A condition variable for conditions that are changed without a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace tdock {

// Who waits:    for (;;) { key = events.Prepare(); if (condition) { events.Cancel(); break; } events.Wait(key, …); }
// Who changes:  make the condition true; events.Notify();
//
// No change after Prepare is missed. Notify costs one atomic operation while nobody waits, and may be called with any
// lock held. Thread-safe.
class EventCount {
 public:
  using Key = uint64_t;

  Key Prepare() {
    waiters_.fetch_add(1);
    return changes_.load();
  }
  void Cancel() { waiters_.fetch_sub(1); }
  // Until a change after `key`, or the deadline.
  void Wait(Key key, Clock& clock, absl::Time deadline) TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      while (changes_.load() == key && clock.Now() < deadline) clock.Wait(changed_, mu_, deadline);
    }
    waiters_.fetch_sub(1);
  }

  void Notify() TDOCK_EXCLUDES(mu_) {
    // Writes, so that either a waiter that comes later sees what was changed before this, or this sees the waiter.
    if (waiters_.fetch_add(0) == 0) return;
    MutexLock lock(mu_);
    changes_.fetch_add(1);
    changed_.NotifyAll();
  }

 private:
  std::atomic<int64_t> waiters_{0};
  std::atomic<uint64_t> changes_{0};
  Mutex mu_;
  CondVar changed_;
};

}  // namespace tdock
