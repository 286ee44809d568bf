// Threads that do what takes long, for those who must not be kept waiting.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace tdock {

// Whoever posts much waits for his own tasks: those who have posted any are served in turn. Thread-safe.
class WorkQueue {
 public:
  // Stands for who posts; it is compared and not looked at.
  using Owner = const void*;

  explicit WorkQueue(int threads);
  // Does what was posted first.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // As many threads as suit this machine.
  static int UsualThreads();

  // Runs `task` on one of the threads, without a lock. Tasks of one owner begin in their order, and may run at once.
  void Post(Owner owner, std::function<void()> task) TDOCK_EXCLUDES(mu_);
  // Returns when there is nothing to do. Not by a task.
  void AwaitIdle() TDOCK_EXCLUDES(mu_);

  // Whether this thread is one of a work queue.
  static bool OnWorker();

 private:
  void Work() TDOCK_EXCLUDES(mu_);
  std::function<void()> TakeNext() TDOCK_REQUIRES(mu_);

  Mutex mu_;
  CondVar posted_, idle_;
  std::map<Owner, std::deque<std::function<void()>>> tasks_ TDOCK_GUARDED_BY(mu_);
  // Those who have tasks, each once: the first is served next.
  std::deque<Owner> turns_ TDOCK_GUARDED_BY(mu_);
  int running_ TDOCK_GUARDED_BY(mu_) = 0;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tdock
