// A thread that serves sockets.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/watchdog.h"

namespace tdock::net {

struct Io;  // Asio's part, whose headers take long to compile

class Loop : public std::enable_shared_from_this<Loop> {
 public:
  // ResourceExhausted if the system has no more descriptors. `heartbeat` records what the thread does; may be null.
  static absl::StatusOr<std::shared_ptr<Loop>> Start(std::shared_ptr<Heartbeat> heartbeat = nullptr);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Stops the thread. Tasks that have not run are dropped, and so are later ones. Not by the loop's thread; whatever
  // waits for its sockets must be closed before.
  void Stop() TDOCK_EXCLUDES(mu_);

  // Runs `task` on the loop's thread soon; does nothing after Stop(). Thread-safe.
  void Post(std::function<void()> task) TDOCK_EXCLUDES(mu_);
  // Runs it there, and returns when it has run, or was dropped. Not by the loop's thread.
  void Run(std::function<void()> task);
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_.load(std::memory_order_relaxed); }
  // Calls `tick` about once per period, from now on. On the loop's thread.
  void SetTick(absl::Duration period, std::function<void()> tick);

  // For handlers: the thread begins to do something, and describes it in more detail.
  void Begin();
  void Describe(const char* what, absl::string_view whose);

  Io& io() { return *io_; }

 private:
  explicit Loop(std::shared_ptr<Heartbeat> heartbeat);

  void Work();
  void RunTasks() TDOCK_EXCLUDES(mu_);
  void Tick();

  const std::shared_ptr<Heartbeat> heartbeat_;
  const std::unique_ptr<Io> io_;
  absl::Duration tick_period_;
  std::function<void()> tick_;

  Mutex mu_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> tasks_ TDOCK_GUARDED_BY(mu_);
  std::atomic<std::thread::id> thread_id_{};
  std::thread thread_;
};

// Waits for a descriptor that another owns. On the loop's thread only.
class Waits {
 public:
  Waits();
  ~Waits();
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  // Errors are the system's.
  absl::Status Open(Loop& loop, int fd);
  // No function is called any more.
  void Close();
  // Calls `ready` once, when the descriptor can be read, or its other end is gone. `ready` keeps this object.
  void AwaitReadable(std::function<void()> ready);
  void AwaitWritable(std::function<void()> ready);

 private:
  struct Descriptor;
  void Await(bool reads, bool& waits, std::function<void()> ready);

  Loop* loop_ = nullptr;
  std::unique_ptr<Descriptor> descriptor_;
  bool reading_ = false, writing_ = false;
};

}  // namespace tdock::net
