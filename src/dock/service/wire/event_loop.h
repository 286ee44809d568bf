// A thread that serves file descriptors.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/watchdog.h"

namespace tdock::service {

// All methods but Post are called by its own thread only, or before Start.
class EventLoop {
 public:
  // Handles the events of a descriptor: EPOLLIN, EPOLLOUT, EPOLLHUP, ….
  using OnEvents = std::function<void(uint32_t events)>;

  // ResourceExhausted if the system has no more descriptors.
  static absl::StatusOr<std::shared_ptr<EventLoop>> Make();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  // Stops the thread. Tasks that have not run are dropped, and so are later ones. Not by the loop's thread.
  void Stop() TDOCK_EXCLUDES(mu_);

  // Runs `task` on the loop's thread soon. Thread-safe.
  void Post(std::function<void()> task) TDOCK_EXCLUDES(mu_);
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_.load(std::memory_order_relaxed); }
  // A read buffer for code that runs on the loop's thread.
  std::span<char> scratch() { return scratch_; }

  // The caller owns the descriptor, and removes it before closing it.
  absl::Status Add(int fd, uint32_t events, OnEvents on_events);
  void Change(int fd, uint32_t events);
  void Remove(int fd);
  // Records in the heartbeat what the loop's thread does.
  void SetHeartbeat(std::shared_ptr<Heartbeat> heartbeat) { heartbeat_ = std::move(heartbeat); }
  // The same in more detail, if this is the loop's thread.
  void Describe(const char* what, absl::string_view whose);
  // Calls `tick` about once per period.
  void SetTick(absl::Duration period, std::function<void()> tick);

 private:
  EventLoop(int epoll, int wakeup) : epoll_(epoll), wakeup_(wakeup) {}

  void Run();
  void Wake() TDOCK_REQUIRES(mu_);
  // False if the loop must end.
  bool RunTasks() TDOCK_EXCLUDES(mu_);

  const int epoll_;
  const int wakeup_;
  absl::flat_hash_map<int, std::shared_ptr<OnEvents>> watched_;
  absl::Duration tick_period_ = absl::InfiniteDuration();
  std::function<void()> tick_;
  std::shared_ptr<Heartbeat> heartbeat_;  // may be null
  std::vector<char> scratch_ = std::vector<char>(size_t{256} << 10);

  Mutex mu_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  bool woken_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> tasks_ TDOCK_GUARDED_BY(mu_);
  std::atomic<std::thread::id> thread_id_{};  // once it runs
  std::thread thread_;
};

}  // namespace tdock::service
