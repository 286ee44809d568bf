#include "core/base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

// In the child, where only what is safe in signal handlers may be called.
[[noreturn]] void BecomeProgram(char* const* arguments, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it has ended before the line above
  dup2(output, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& arguments) {
  if (access(arguments.at(0).c_str(), X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot run '", EscapeUnprintable(arguments[0]), "'"));
  }
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(pointers.data(), ends[1], parent);
  const int error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot run '", EscapeUnprintable(arguments[0]), "'"));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, ends[0]));
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  if (!code_.has_value()) waitpid(pid_, nullptr, 0);
  close(output_);
}

absl::StatusOr<std::string> ChildProcess::ReadLine(absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  for (;;) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return absl::DeadlineExceededError("the program wrote no line in time");
    pollfd watched{.fd = output_, .events = POLLIN, .revents = 0};
    if (poll(&watched, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30))) <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t got = read(output_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::OutOfRangeError("the program has closed its output");
    read_.append(bytes.data(), static_cast<size_t>(got));
  }
}

void ChildProcess::Signal(int signal) {
  if (!Poll().has_value()) kill(pid_, signal);
}

std::optional<int> ChildProcess::Poll() {
  if (code_.has_value()) return code_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  for (;;) {
    if (const std::optional<int> code = Poll(); code.has_value()) return *code;
    if (absl::Now() >= deadline) return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
    absl::SleepFor(absl::Milliseconds(2));
  }
}

std::string FolderOfThisProgram() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string text(path.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(0, text.rfind('/'));
}

}  // namespace tdock
