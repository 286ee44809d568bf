// One order of calls for all workers of a group.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "core/base/mutex.h"

namespace tdock::runtime {

// Runs functions one after another, in the order in which they were given. Ranks that meet in a collective operation
// must get calls in the same order, also when several threads begin calls at once. Thread-safe.
class CallOrder {
 public:
  // Runs `begin`, without a lock: at once, or after those before it on the thread that runs them. It must not wait, and
  // may call Run().
  void Run(std::function<void()> begin) TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      waiting_.push_back(std::move(begin));
      if (std::exchange(running_, true)) return;
    }
    while (const std::function<void()> next = TakeNext()) next();
  }

 private:
  // Null, and the end of running, if there is none.
  std::function<void()> TakeNext() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (waiting_.empty()) {
      running_ = false;
      return nullptr;
    }
    std::function<void()> next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

  Mutex mu_;
  std::deque<std::function<void()>> waiting_ TDOCK_GUARDED_BY(mu_);
  bool running_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock::runtime
