#include "core/net/loop.h"

#include <pthread.h>
#include <sched.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <future>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tdock::net {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

struct Io {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer ticks{context};
};

namespace {

// How long to spin after an event.
constexpr absl::Duration kLookForEvents = absl::Microseconds(50);

}  // namespace

Loop::Loop(std::shared_ptr<Heartbeat> heartbeat) : heartbeat_(std::move(heartbeat)), io_(std::make_unique<Io>()) {}

absl::StatusOr<std::shared_ptr<Loop>> Loop::Start(std::shared_ptr<Heartbeat> heartbeat) {
  try {
    std::shared_ptr<Loop> loop(new Loop(std::move(heartbeat)));
    loop->thread_ = std::thread([raw = loop.get()] { raw->Work(); });
    pthread_setname_np(loop->thread_.native_handle(), "tdock-loop");
    return loop;
  } catch (const std::runtime_error& error) {  // of Asio, or of the thread
    return absl::ResourceExhaustedError(absl::StrCat("cannot wait for connections: ", error.what()));
  }
}

Loop::~Loop() { Stop(); }

void Loop::Stop() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mu_);
    if (std::exchange(stopping_, true)) return;
    tasks.swap(tasks_);
  }
  io_->context.stop();
  if (thread_.joinable()) thread_.join();
  // Another thread may get its id.
  thread_id_ = std::thread::id();
  tick_ = nullptr;
  // Handlers of waits that have ended let go of what they hold.
  io_->ticks.cancel();
  io_->context.restart();
  io_->context.poll();
}

void Loop::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  if (tasks_.size() == 1) asio::post(io_->context, [this] { RunTasks(); });
}

void Loop::Run(std::function<void()> task) {
  // A task that is dropped takes the promise with it.
  auto promise = std::make_shared<std::promise<void>>();
  const std::future<void> ran = promise->get_future();
  Post([task = std::move(task), promise = std::move(promise)] {
    task();
    promise->set_value();
  });
  ran.wait();
}

void Loop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mu_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    Begin();
    task();
    task = nullptr;
  }
}

void Loop::SetTick(absl::Duration period, std::function<void()> tick) {
  tick_period_ = period;
  tick_ = std::move(tick);
  Tick();
}

void Loop::Tick() {
  io_->ticks.expires_after(absl::ToChronoNanoseconds(tick_period_));
  io_->ticks.async_wait([this](const ErrorCode& error) {
    if (error || tick_ == nullptr) return;
    Begin();
    tick_();
    Tick();
  });
}

void Loop::Begin() {
  if (heartbeat_ != nullptr) heartbeat_->Begin("handles events");
}

void Loop::Describe(const char* what, absl::string_view whose) {
  if (heartbeat_ != nullptr && OnLoopThread()) heartbeat_->Describe(what, whose);
}

void Loop::Work() {
  // Signals are for threads that handle them.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  thread_id_ = std::this_thread::get_id();
  absl::Time look_until = absl::InfinitePast();
  while (!io_->context.stopped()) {
    // A client that has sent one request often sends the next sooner than an idle processor wakes up. Other threads
    // that want to run may do so.
    size_t handled = io_->context.poll();
    const bool looks = handled == 0 && absl::Now() < look_until;
    if (looks) sched_yield();
    if (handled == 0 && !looks) handled = io_->context.run_one();
    if (handled == 0) continue;
    if (heartbeat_ != nullptr) heartbeat_->End();
    look_until = absl::Now() + kLookForEvents;
  }
}

struct Waits::Descriptor : asio::posix::stream_descriptor {
  using asio::posix::stream_descriptor::stream_descriptor;
};

Waits::Waits() = default;
Waits::~Waits() { Close(); }

absl::Status Waits::Open(Loop& loop, int fd) {
  loop_ = &loop;
  descriptor_ = std::make_unique<Descriptor>(loop.io().context);
  ErrorCode error;
  descriptor_->assign(fd, error);
  return error ? absl::ErrnoToStatus(error.value(), "cannot wait for a socket") : absl::OkStatus();
}

void Waits::Close() {
  if (descriptor_ != nullptr && descriptor_->is_open()) descriptor_->release();
}

void Waits::AwaitReadable(std::function<void()> ready) { Await(true, reading_, std::move(ready)); }
void Waits::AwaitWritable(std::function<void()> ready) { Await(false, writing_, std::move(ready)); }

void Waits::Await(bool reads, bool& waits, std::function<void()> ready) {
  if (std::exchange(waits, true)) return;
  descriptor_->async_wait(reads ? Descriptor::wait_read : Descriptor::wait_write,
                          [this, &waits, ready = std::move(ready)](const ErrorCode& error) {
                            waits = false;
                            if (error == asio::error::operation_aborted) return;
                            loop_->Begin();
                            ready();
                          });
}

}  // namespace tdock::net
