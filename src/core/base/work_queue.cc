#include "core/base/work_queue.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace tdock {
namespace {

thread_local bool on_worker = false;

}  // namespace

WorkQueue::WorkQueue(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), "tdock-work");
  }
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(mu_);
    ending_ = true;
    posted_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

int WorkQueue::UsualThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 8); }

bool WorkQueue::OnWorker() { return on_worker; }

void WorkQueue::Post(Owner owner, std::function<void()> task) {
  MutexLock lock(mu_);
  std::deque<std::function<void()>>& own = tasks_[owner];
  if (own.empty()) turns_.push_back(owner);
  own.push_back(std::move(task));
  posted_.NotifyOne();
}

void WorkQueue::AwaitIdle() {
  MutexLock lock(mu_);
  while (running_ > 0 || !turns_.empty()) idle_.Wait(mu_);
}

std::function<void()> WorkQueue::TakeNext() {
  const Owner owner = turns_.front();
  turns_.pop_front();
  const auto it = tasks_.find(owner);
  std::function<void()> task = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) {
    tasks_.erase(it);
  } else {
    turns_.push_back(owner);
  }
  return task;
}

void WorkQueue::Work() {
  on_worker = true;
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      while (turns_.empty() && (!ending_ || running_ > 0)) posted_.Wait(mu_);
      if (turns_.empty()) {
        posted_.NotifyAll();  // the others end, too
        return;
      }
      task = TakeNext();
      ++running_;
    }
    task();
    task = nullptr;
    MutexLock lock(mu_);
    if (--running_ > 0 || !turns_.empty()) continue;
    idle_.NotifyAll();
    if (ending_) posted_.NotifyAll();
  }
}

}  // namespace tdock
