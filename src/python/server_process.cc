#include "python/server_process.h"

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/callback.h"
#include "core/base/child_process.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::python {
namespace {

// "CODE MESSAGE": the error that `tdock dock serve --owned-folder` prints if it cannot start.
absl::Status ErrorOf(absl::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  int code = 0;
  std::string message;
  const bool is_error = absl::SimpleAtoi(line.substr(0, space), &code) && code > 0 && code <= 16;
  if (!is_error || !absl::CUnescape(line.substr(std::min(space + 1, line.size())), &message)) {
    return absl::UnavailableError(absl::StrCat("the dock server did not start: ", EscapeForMessage(line, 500)));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace

// The child is killed when the thread that started it ends. So a dedicated thread is kept for it, since Python's
// threads come and go.
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
    // Not under a lock, which the woken threads may need.
    lock.unlock();
    RequestStop(thread_.get_stop_source());
    lock.lock();
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
      if (!line.ok()) {
        return absl::UnavailableError(absl::StrCat("the dock server did not start: ", line.status().message(),
                                                   "; see what it wrote to standard error"));
      }
      if (*line == "ready") return absl::OkStatus();
      if (absl::string_view error = *line; absl::ConsumePrefix(&error, "error ")) return ErrorOf(error);
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

int ServerProcess::Close(absl::Duration drain) {
  if (!child_.here()) return -1;
  return child_->Close(drain);
}

}  // namespace tdock::python
