// Threads for calls that wait for servers.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace tdock::trainer {

// As many threads as there were tasks at the same time. Thread-safe.
class Tasks {
 public:
  Tasks() = default;
  // Waits for the tasks, and those that they start.
  ~Tasks();
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  // Begins at once; a task may start others, and wait for them. Where the system gives no more threads, it begins when
  // another has ended. Throws std::system_error if there is not one thread.
  void Run(std::function<void()> task) TDOCK_EXCLUDES(mu_);
  // Calls `call` with each number below `count` at the same time, and returns when all have returned.
  void ForEach(size_t count, const std::function<void(size_t)>& call) TDOCK_EXCLUDES(mu_);

 private:
  // Takes the task, unless no thread can be had for it.
  bool TryRun(std::function<void()>& task) TDOCK_EXCLUDES(mu_);
  void Work() TDOCK_EXCLUDES(mu_);

  Mutex mu_;
  CondVar posted_, ended_;
  std::deque<std::function<void()>> tasks_ TDOCK_GUARDED_BY(mu_);
  size_t idle_ TDOCK_GUARDED_BY(mu_) = 0;
  size_t running_ TDOCK_GUARDED_BY(mu_) = 0;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
