// Work done ahead by threads, and returned in order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace tdock::data {

// `Task` describes the work, `Result` its result. What Next() returns does not depend on the number of threads. At most
// 2·threads + 1 results are held. Next() may be called by one thread at a time.
template <class Task, class Result>
class Prefetch {
 public:
  // next() returns the tasks in order, nothing after the last; it is never called concurrently, and runs under the lock
  // of the Prefetch. work() must be thread-safe. With no threads, Next() does the work itself.
  Prefetch(int threads, std::function<std::optional<Task>()> next, std::function<Result(Task)> work)
      : window_(2 * threads + 1), next_(std::move(next)), work_(std::move(work)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  }

  ~Prefetch() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The result of the next task; nothing after the last. Waits only for that work.
  std::optional<Result> Next() TDOCK_EXCLUDES(mu_) {
    if (threads_.empty()) {
      std::optional<Task> task;
      {
        MutexLock lock(mu_);
        task = next_();
      }
      if (!task) return std::nullopt;
      return work_(*std::move(task));
    }
    MutexLock lock(mu_);
    while (!done_.contains(taken_) && !(ended_ && taken_ == given_)) changed_.Wait(mu_);
    const auto found = done_.find(taken_);
    if (found == done_.end()) return std::nullopt;
    Result result = std::move(found->second);
    done_.erase(found);
    ++taken_;
    changed_.NotifyAll();
    return result;
  }

 private:
  void Serve() TDOCK_EXCLUDES(mu_) {
    for (;;) {
      std::optional<Task> task;
      int64_t number = 0;
      {
        MutexLock lock(mu_);
        while (!stopping_ && !ended_ && given_ - taken_ >= window_) changed_.Wait(mu_);
        if (stopping_ || ended_) return;
        task = next_();
        if (!task) {
          ended_ = true;
          changed_.NotifyAll();
          return;
        }
        number = given_++;
      }
      Result result = work_(*std::move(task));
      MutexLock lock(mu_);
      done_.emplace(number, std::move(result));
      changed_.NotifyAll();
    }
  }

  const int64_t window_;
  const std::function<std::optional<Task>()> next_;
  const std::function<Result(Task)> work_;
  Mutex mu_;
  CondVar changed_;
  int64_t given_ TDOCK_GUARDED_BY(mu_) = 0;  // tasks that were handed to threads
  int64_t taken_ TDOCK_GUARDED_BY(mu_) = 0;  // results that Next() returned
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  std::map<int64_t, Result> done_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace tdock::data
