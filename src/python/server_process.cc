#include "python/server_process.h"

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/child_process.h"
#include "base/status.h"

namespace tdock::python {

// The child is killed when the thread that started it ends. That one is kept for it: threads of Python come and go.
class ServerProcess::Child {
 public:
  explicit Child(std::vector<std::string> command)
      : thread_([this, command = std::move(command)](std::stop_token stop) { Run(command, std::move(stop)); }) {}

  absl::Status AwaitReady() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return ready_.has_value(); });
    return *ready_;
  }

  pid_t pid() const { return pid_; }
  const std::vector<std::string>& lines() const { return lines_; }

  int Close(absl::Duration drain) {
    std::unique_lock lock(mu_);
    drain_ = drain;
    thread_.request_stop();
    changed_.notify_all();
    changed_.wait(lock, [&] { return code_.has_value(); });
    return *code_;
  }

 private:
  void Run(const std::vector<std::string>& command, std::stop_token stop) {
    absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(command);
    const absl::Status ready = child.ok() ? ReadLines(**child) : child.status();
    std::unique_lock lock(mu_);
    if (child.ok()) pid_ = (*child)->pid();
    ready_ = ready;
    changed_.notify_all();
    if (ready.ok()) changed_.wait(lock, stop, [] { return false; });
    const absl::Duration drain = drain_;
    lock.unlock();
    const int code = ready.ok() ? End(**child, drain) : -1;
    lock.lock();
    code_ = code;
    changed_.notify_all();
  }

  absl::Status ReadLines(ChildProcess& child) {
    for (;;) {
      absl::StatusOr<std::string> line = child.ReadLine(absl::Seconds(30));
      if (!line.ok()) return Annotate(line.status(), "the dock server did not start; what it wrote on stderr says why");
      if (*line == "ready") return absl::OkStatus();
      lines_.push_back(*std::move(line));
    }
  }

  static int End(ChildProcess& child, absl::Duration drain) {
    child.Signal(SIGTERM);
    if (const auto code = child.Wait(drain); code.ok()) return *code;
    child.Signal(SIGTERM);  // the second ends it at once
    if (const auto code = child.Wait(absl::Seconds(2)); code.ok()) return *code;
    child.Signal(SIGKILL);
    return child.Wait(absl::Seconds(10)).value_or(-1);
  }

  std::mutex mu_;
  std::condition_variable_any changed_;
  std::optional<absl::Status> ready_;
  std::optional<int> code_;
  absl::Duration drain_ = absl::ZeroDuration();
  pid_t pid_ = 0;
  std::vector<std::string> lines_;
  std::jthread thread_;  // the last: it uses the others
};

absl::StatusOr<ServerProcess> ServerProcess::Start(const std::vector<std::string>& command) {
  auto child = std::make_shared<Child>(command);
  TDOCK_RETURN_IF_ERROR(child->AwaitReady());
  return ServerProcess(std::move(child));
}

pid_t ServerProcess::pid() const { return child_.get()->pid(); }

const std::vector<std::string>& ServerProcess::lines() const { return child_.get()->lines(); }

int ServerProcess::Close(double drain_seconds) {
  if (!child_.here()) return -1;
  return child_->Close(absl::Seconds(drain_seconds));
}

}  // namespace tdock::python
