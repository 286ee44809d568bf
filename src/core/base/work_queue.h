// Threads for long tasks of callers that must not wait.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace tdock {

// Owners with tasks are served in turn, so an owner of many tasks delays only itself. Thread-safe.
class WorkQueue {
 public:
  // Identifies the owner of a task; it is compared and never dereferenced.
  using Owner = const void*;

  explicit WorkQueue(int threads);
  // Finishes all posted tasks first.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // A suitable number of threads for this machine.
  static int UsualThreads();

  // Runs `task` on one of the threads, without a lock. Tasks of one owner begin in order, and may run concurrently.
  void Post(Owner owner, std::function<void()> task) TDOCK_EXCLUDES(mu_);
  // Returns when there is nothing to do. Must not be called by a task.
  void AwaitIdle() TDOCK_EXCLUDES(mu_);

  // Whether this thread is one of a work queue.
  static bool OnWorker();

 private:
  void Work() TDOCK_EXCLUDES(mu_);
  std::function<void()> TakeNext() TDOCK_REQUIRES(mu_);

  Mutex mu_;
  CondVar posted_, idle_;
  std::map<Owner, std::deque<std::function<void()>>> tasks_ TDOCK_GUARDED_BY(mu_);
  // The owners that have tasks, each once: the first is served next.
  std::deque<Owner> turns_ TDOCK_GUARDED_BY(mu_);
  int running_ TDOCK_GUARDED_BY(mu_) = 0;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tdock
