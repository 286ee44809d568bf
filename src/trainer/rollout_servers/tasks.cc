#include "trainer/rollout_servers/tasks.h"

#include <system_error>
#include <utility>

namespace tdock::trainer {

Tasks::~Tasks() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mu_);
    while (running_ > 0 || !tasks_.empty()) ended_.Wait(mu_);
    ending_ = true;
    threads = std::move(threads_);
  }
  posted_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

bool Tasks::TryRun(std::function<void()>& task) {
  {
    MutexLock lock(mu_);
    if (idle_ <= tasks_.size()) {
      try {
        threads_.emplace_back([this] { Work(); });
      } catch (const std::system_error&) {  // a process may have only so many
        return false;
      }
      ++idle_;
    }
    tasks_.push_back(std::move(task));
  }
  posted_.NotifyOne();
  return true;
}

void Tasks::Run(std::function<void()> task) {
  if (TryRun(task)) return;
  MutexLock lock(mu_);
  if (threads_.empty())
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "no thread");
  tasks_.push_back(std::move(task));  // for the next that has nothing to do
}

void Tasks::ForEach(size_t count, const std::function<void(size_t)>& call) {
  struct Rest {
    Mutex mu;
    CondVar none;
    size_t count TDOCK_GUARDED_BY(mu) = 0;
  } rest;
  {
    MutexLock lock(rest.mu);
    rest.count = count;
  }
  for (size_t i = 0; i < count; ++i) {
    std::function<void()> task = [&rest, &call, i] {
      call(i);
      MutexLock lock(rest.mu);
      if (--rest.count == 0) rest.none.NotifyAll();
    };
    if (!TryRun(task)) task();
  }
  MutexLock lock(rest.mu);
  while (rest.count > 0) rest.none.Wait(rest.mu);
}

void Tasks::Work() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      while (tasks_.empty() && !ending_) posted_.Wait(mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      --idle_;
      ++running_;
    }
    task();
    task = nullptr;
    {
      MutexLock lock(mu_);
      --running_;
      ++idle_;
    }
    ended_.NotifyAll();
  }
}

}  // namespace tdock::trainer
