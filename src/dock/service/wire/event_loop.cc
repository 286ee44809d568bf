#include "dock/service/wire/event_loop.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tdock::service {

namespace {

// How long to spin after an event.
constexpr absl::Duration kLookForEvents = absl::Microseconds(50);

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::Make() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{.events = EPOLLIN, .data = {.fd = wakeup}};
  if (epoll < 0 || wakeup < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, wakeup, &event) != 0) {
    const int error = errno;
    if (epoll >= 0) close(epoll);
    if (wakeup >= 0) close(wakeup);
    return absl::ResourceExhaustedError(absl::StrCat("cannot wait for connections: ", std::strerror(error)));
  }
  return std::shared_ptr<EventLoop>(new EventLoop(epoll, wakeup));
}

EventLoop::~EventLoop() {
  Stop();
  close(epoll_);
  close(wakeup_);
}

void EventLoop::Stop() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    tasks.swap(tasks_);
    Wake();
  }
  if (thread_.joinable()) thread_.join();
  watched_.clear();
}

void EventLoop::Wake() {
  if (std::exchange(woken_, true)) return;
  const uint64_t one = 1;
  // It cannot fail: the counter is far from its maximum.
  [[maybe_unused]] const ssize_t written = write(wakeup_, &one, sizeof(one));
}

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "tdock-loop");
}

void EventLoop::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  Wake();
}

absl::Status EventLoop::Add(int fd, uint32_t events, OnEvents on_events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot wait for descriptor ", fd, ": ", std::strerror(errno)));
  }
  watched_[fd] = std::make_shared<OnEvents>(std::move(on_events));
  return absl::OkStatus();
}

void EventLoop::Change(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Remove(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

void EventLoop::Describe(const char* what, absl::string_view whose) {
  if (heartbeat_ != nullptr && OnLoopThread()) heartbeat_->Describe(what, whose);
}

void EventLoop::SetTick(absl::Duration period, std::function<void()> tick) {
  tick_period_ = period;
  tick_ = std::move(tick);
}

bool EventLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    tasks.swap(tasks_);
    woken_ = false;
  }
  for (auto& task : tasks) task();
  return true;
}

void EventLoop::Run() {
  thread_id_ = std::this_thread::get_id();
  std::array<epoll_event, 64> events;
  absl::Time next_tick = absl::Now() + tick_period_;
  absl::Time look_until = absl::InfinitePast();
  for (;;) {
    int timeout_ms = -1;
    if (tick_ != nullptr) {
      timeout_ms = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(next_tick - absl::Now()) + 1));
    }
    // A client that has sent one request often sends the next sooner than an idle processor wakes up. Other threads
    // that want to run may do so.
    if (absl::Now() < look_until) timeout_ms = 0;
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
    if (heartbeat_ != nullptr) heartbeat_->Begin("handles events");
    if (count > 0) {
      look_until = absl::Now() + kLookForEvents;
    } else if (timeout_ms == 0) {
      sched_yield();
    }
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.fd == wakeup_) {
        uint64_t number = 0;
        [[maybe_unused]] const ssize_t got = read(wakeup_, &number, sizeof(number));
        continue;
      }
      // A handler may end the watch over another descriptor, or over its own.
      const auto found = watched_.find(event.data.fd);
      if (found == watched_.end()) continue;
      const std::shared_ptr<OnEvents> on_events = found->second;
      (*on_events)(event.events);
    }
    if (!RunTasks()) break;
    if (tick_ != nullptr && absl::Now() >= next_tick) {
      tick_();
      next_tick = absl::Now() + tick_period_;
    }
    if (heartbeat_ != nullptr) heartbeat_->End();
  }
  if (heartbeat_ != nullptr) heartbeat_->End();
}

}  // namespace tdock::service
