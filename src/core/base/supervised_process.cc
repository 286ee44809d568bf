#include "core/base/supervised_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/supervisor.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

void CloseDescriptor(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// Both ends, which are closed unless they are taken.
struct PipeEnds {
  int reads = -1, writes = -1;
  PipeEnds() = default;
  PipeEnds(PipeEnds&& other) noexcept
      : reads(std::exchange(other.reads, -1)), writes(std::exchange(other.writes, -1)) {}
  PipeEnds& operator=(PipeEnds&&) = delete;
  ~PipeEnds() {
    CloseDescriptor(reads);
    CloseDescriptor(writes);
  }
};

// Moves a descriptor off the standard streams, which this process may have closed: the supervised process puts its own
// there.
int BehindStandardStreams(int descriptor) {
  if (descriptor > STDERR_FILENO) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(descriptor);
  return moved;
}

absl::StatusOr<PipeEnds> MakePipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  PipeEnds made;
  made.reads = BehindStandardStreams(ends[0]);
  made.writes = BehindStandardStreams(ends[1]);
  if (made.reads < 0 || made.writes < 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  return made;
}

// Files in memory with these texts, at their beginnings, and closed with it.
class TextFiles {
 public:
  TextFiles() = default;
  ~TextFiles() {
    for (int file : files_) CloseDescriptor(file);
  }
  TextFiles(const TextFiles&) = delete;
  TextFiles& operator=(const TextFiles&) = delete;

  // The descriptor of a new one.
  absl::StatusOr<int> Add(absl::string_view text) {
    const int made = memfd_create("tdock-text", MFD_CLOEXEC);
    if (made < 0) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
    const int file = files_.emplace_back(BehindStandardStreams(made));
    if (file < 0) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = pwrite(file, text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (written < 0) return absl::ErrnoToStatus(errno, "cannot write a file in memory");
      at += static_cast<size_t>(written);
    }
    return file;
  }

 private:
  std::vector<int> files_;
};

absl::Status SetNonBlocking(int descriptor) {
  if (fcntl(descriptor, F_SETFL, O_NONBLOCK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot set up a pipe");
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  const auto cannot = [&](int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot run '", EscapeUnprintable(name), "'"));
  };
  if (name.empty()) return absl::InvalidArgumentError("there is no program to run");
  if (absl::StrContains(name, '/')) {
    if (access(name.c_str(), X_OK) != 0) return cannot(errno);
    return name;
  }
  const char* const path = getenv("PATH");
  int error = ENOENT;
  for (const absl::string_view folder : absl::StrSplit(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    if (errno == EACCES) error = EACCES;
  }
  return absl::ErrnoToStatus(error,
                             absl::StrCat("cannot run '", EscapeUnprintable(name), "', which no folder of PATH has"));
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The kernel tells the supervisor there which children it has.
absl::Status CheckProc() {
  const std::string path = absl::StrCat("/proc/", getpid(), "/task/", getpid(), "/children");
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot supervise other programs here: ", path, " cannot be read (", strerror(errno),
                   "); a mounted /proc and a kernel with CONFIG_PROC_CHILDREN are needed"));
}

int MillisecondsUntil(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return -1;
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

// Reads once. False at the end.
bool ReadSome(int descriptor, std::string& text) {
  std::array<char, 1 << 16> bytes;
  ssize_t got = 0;
  do {
    got = read(descriptor, bytes.data(), bytes.size());
  } while (got < 0 && errno == EINTR);
  if (got > 0) text.assign(bytes.data(), static_cast<size_t>(got));
  return got > 0 || (got < 0 && errno == EAGAIN);
}

// Writes once, without the signal that a closed pipe would send. -1: the pipe is closed.
ssize_t WriteSome(int descriptor, absl::string_view bytes) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = write(descriptor, bytes.data(), bytes.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec at_once{};
    sigtimedwait(&pipe_signal, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (written >= 0) return written;
  return error == EAGAIN || error == EINTR ? 0 : -1;
}

}  // namespace

std::string ProcessEnd::ToString() const {
  switch (how) {
    case How::kExited:
      return absl::StrCat("exited with code ", code);
    case How::kSignaled:
      return absl::StrCat("was killed by signal ", code, " (", strsignal(code), ")");
    case How::kTooMuchMemory:
      return absl::StrCat("was killed because it used ", memory_bytes >> 20, " MiB of memory with its children");
    case How::kNotRun:
      return absl::StrCat("could not be run: ", strerror(code));
  }
  return "ended";
}

std::string ScriptReader(absl::string_view name) {
  return absl::StrCat("f=open(", kScriptNumber, ",'rb');s=f.read();f.close();exec(compile(s,'<", name, ">','exec'))");
}

absl::StatusOr<std::unique_ptr<SupervisedProcess>> SupervisedProcess::Start(const ProcessOptions& options) {
  TDOCK_CHECK(!options.arguments.empty(), "a program to run needs a name");
  TextFiles texts;
  std::vector<std::pair<int, int>> descriptors = options.descriptors;
  for (const auto& [text, number] : options.texts) {
    TDOCK_ASSIGN_OR_RETURN(const int file, texts.Add(text));
    descriptors.emplace_back(file, number);
  }
  for (const auto& [ours, theirs] : descriptors) {
    TDOCK_CHECK(theirs > STDERR_FILENO && theirs <= kMostDescriptor, "a descriptor's number is from 3 to 63");
  }
  TDOCK_RETURN_IF_ERROR(CheckProc());
  TDOCK_ASSIGN_OR_RETURN(const std::string program, FindProgram(options.arguments[0]));
  const std::vector<char*> arguments = Pointers(options.arguments);
  const std::vector<char*> environment = options.environment ? Pointers(*options.environment) : std::vector<char*>();
  TDOCK_ASSIGN_OR_RETURN(PipeEnds input, MakePipe());
  TDOCK_ASSIGN_OR_RETURN(PipeEnds output, MakePipe());
  TDOCK_ASSIGN_OR_RETURN(PipeEnds errors, MakePipe());
  TDOCK_ASSIGN_OR_RETURN(PipeEnds control, MakePipe());
  TDOCK_ASSIGN_OR_RETURN(PipeEnds report, MakePipe());
  for (const int ours : {input.writes, output.reads, errors.reads}) TDOCK_RETURN_IF_ERROR(SetNonBlocking(ours));
  const SupervisorTask task{.program = program.c_str(),
                            .arguments = arguments.data(),
                            .environment = options.environment ? environment.data() : environ,
                            .folder = options.folder.empty() ? nullptr : options.folder.c_str(),
                            .limits = options.limits,
                            .core_dumps = options.core_dumps,
                            .standard = {input.reads, output.writes, errors.writes},
                            .descriptors = descriptors,
                            .control = control.reads,
                            .report = report.writes};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler of this process may run in the other
  const pid_t pid = ForkWithoutHandlers();
  if (pid == 0) Supervise(task);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0)
    return absl::ErrnoToStatus(error, absl::StrCat("cannot run '", EscapeUnprintable(options.arguments[0]), "'"));
  std::unique_ptr<SupervisedProcess> process(new SupervisedProcess());
  process->supervisor_ = pid;
  process->program_ = options.arguments[0];
  process->input_ = std::exchange(input.writes, -1);
  process->output_ = std::exchange(output.reads, -1);
  process->errors_ = std::exchange(errors.reads, -1);
  process->control_ = std::exchange(control.writes, -1);
  process->report_ = std::exchange(report.reads, -1);
  return process;
}

SupervisedProcess::~SupervisedProcess() {
  Kill();
  for (int* descriptor : {&input_, &output_, &errors_, &report_}) CloseDescriptor(*descriptor);
}

void SupervisedProcess::CloseInput() { CloseDescriptor(input_); }

std::array<pollfd, 3> SupervisedProcess::Watched(bool has_input) const {
  return {pollfd{.fd = has_input ? input_ : -1, .events = POLLOUT, .revents = 0},
          pollfd{.fd = output_, .events = POLLIN, .revents = 0}, pollfd{.fd = errors_, .events = POLLIN, .revents = 0}};
}

absl::StatusOr<SupervisedProcess::Moved> SupervisedProcess::Move(absl::string_view input, absl::Time deadline) {
  Moved moved;
  for (;;) {
    const bool writes = !input.empty() && input_ >= 0;
    if (output_ < 0 && errors_ < 0 && !writes) {
      return absl::OutOfRangeError(absl::StrCat("'", EscapeUnprintable(program_), "' has closed its output"));
    }
    std::array<pollfd, 3> watched = Watched(writes);
    const int ready = poll(watched.data(), watched.size(), MillisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
    if (ready > 0 && watched[0].revents != 0) {
      const ssize_t written = WriteSome(input_, input);
      if (written < 0) CloseInput();
      moved.written = static_cast<size_t>(std::max<ssize_t>(written, 0));
    }
    if (ready > 0 && watched[1].revents != 0 && !ReadSome(output_, moved.out)) CloseDescriptor(output_);
    if (ready > 0 && watched[2].revents != 0 && !ReadSome(errors_, moved.err)) CloseDescriptor(errors_);
    if (moved.written > 0 || !moved.out.empty() || !moved.err.empty()) return moved;
    // What has changed without a byte, the caller finds in the state.
    if (ready > 0 && (!input_open() || !output_open())) return moved;
    if (ready <= 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("'", EscapeUnprintable(program_), "' has written nothing in time"));
    }
  }
}

absl::StatusOr<ProcessEnd> SupervisedProcess::Wait(absl::Time deadline) {
  while (!end_) {
    pollfd watched{.fd = report_, .events = POLLIN, .revents = 0};
    const int ready = poll(&watched, 1, MillisecondsUntil(deadline));
    if (ready > 0) {
      Reap();
    } else if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("'", EscapeUnprintable(program_), "' still runs"));
    }
  }
  return *end_;
}

// Once the supervisor has reported, or ends.
void SupervisedProcess::Reap() {
  if (end_) return;
  SupervisorReport report;
  ssize_t got = 0;
  do {
    got = read(report_, &report, sizeof(report));
  } while (got < 0 && errno == EINTR);
  int status = 0;
  while (waitpid(supervisor_, &status, 0) < 0 && errno == EINTR) {
  }
  // Without a report, someone has killed the supervisor.
  end_ = got == sizeof(report) ? report.end : ProcessEnd{.how = ProcessEnd::How::kSignaled, .code = SIGKILL};
}

void SupervisedProcess::Signal(int signal) {
  if (end_ || control_ < 0) return;
  const char byte = static_cast<char>(signal);
  WriteSome(control_, {&byte, 1});
  Resume();
}

void SupervisedProcess::Resume() {
  if (!end_) kill(supervisor_, SIGCONT);
}

void SupervisedProcess::StartKill() {
  CloseDescriptor(control_);
  Resume();
}

void SupervisedProcess::Kill() {
  StartKill();
  if (!end_ && !Wait(absl::Now() + absl::Seconds(10)).ok()) {
    kill(supervisor_, SIGKILL);
    Reap();
  }
}

}  // namespace tdock
