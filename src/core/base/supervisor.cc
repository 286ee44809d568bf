#include "core/base/supervisor.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock {
namespace {

constexpr int kMemoryPeriodMs = 50;

void SetLimit(int resource, int64_t limit) {
  if (limit <= 0) return;
  const rlimit both{.rlim_cur = static_cast<rlim_t>(limit), .rlim_max = static_cast<rlim_t>(limit)};
  setrlimit(static_cast<__rlimit_resource>(resource), &both);
}

[[noreturn]] void ReportAndExit(int report, const ProcessEnd& end) {
  const SupervisorReport text{.end = end};
  [[maybe_unused]] const ssize_t written = write(report, &text, sizeof(text));  // less than a pipe holds: at once
  _exit(0);
}

// Puts the descriptors where the program expects them; those of this process may have any numbers.
bool PlaceDescriptors(const SupervisorTask& task) {
  int target[kMostDescriptor + 1], source[kMostDescriptor + 1];
  int count = 0, highest = STDERR_FILENO;
  for (int i = 0; i < 3; ++i, ++count) {
    target[count] = i;
    source[count] = task.standard[static_cast<size_t>(i)];
  }
  for (const auto& [ours, theirs] : task.descriptors) {
    target[count] = theirs;
    source[count++] = ours;
    highest = std::max(highest, theirs);
  }
  for (int i = 0; i < count; ++i) {
    source[i] = fcntl(source[i], F_DUPFD_CLOEXEC, highest + 1);
    if (source[i] < 0) return false;
  }
  for (int i = 0; i < count; ++i) {
    // Not dup2(): to the thread sanitizer, this child's descriptors are still those of its parent's threads.
    if (syscall(SYS_dup3, source[i], target[i], 0) < 0) return false;
  }
  // The others are closed by exec, if those who opened them were careful. This does not rely on it.
  for (int gap = STDERR_FILENO + 1; gap <= highest; ++gap) {
    if (std::find(target, target + count, gap) == target + count) syscall(SYS_close, gap);
  }
  close_range(static_cast<unsigned>(highest) + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  return true;
}

// In the child of the supervisor.
[[noreturn]] void RunProgram(const SupervisorTask& task, pid_t supervisor) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(127);  // it has ended before the line above
  const ProcessLimits& limits = task.limits;
  const int report = fcntl(task.report, F_DUPFD_CLOEXEC, kMostDescriptor + 1);
  if (!PlaceDescriptors(task) || (task.folder != nullptr && chdir(task.folder) != 0)) {
    ReportAndExit(report, {.how = ProcessEnd::How::kNotRun, .code = errno});
  }
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{};
  if (!task.core_dumps) setrlimit(RLIMIT_CORE, &no_core);
  SetLimit(RLIMIT_AS, limits.address_space_bytes);
  SetLimit(RLIMIT_CPU, limits.cpu_seconds);
  SetLimit(RLIMIT_FSIZE, limits.file_bytes);
  SetLimit(RLIMIT_NOFILE, limits.open_files);
  SetLimit(RLIMIT_NPROC, limits.processes);
  execve(task.program, task.arguments, task.environment);
  ReportAndExit(report, {.how = ProcessEnd::How::kNotRun, .code = errno});
}

// "/proc/PID/task/TID/FILE" and the like, without an allocation.
class ProcPath {
 public:
  ProcPath& Text(absl::string_view text) {
    const size_t size = std::min(text.size(), sizeof(path_) - 1 - size_);
    memcpy(path_ + size_, text.data(), size);
    size_ += size;
    path_[size_] = '\0';
    return *this;
  }
  ProcPath& Number(int64_t number) {
    char digits[24];
    char* const end = digits + sizeof(digits);
    char* begin = end;
    do {
      *--begin = static_cast<char>('0' + number % 10);
    } while ((number /= 10) > 0);
    return Text({begin, static_cast<size_t>(end - begin)});
  }
  // The first bytes of the file; empty if it cannot be read.
  template <size_t kSize>
  absl::string_view Read(char (&buffer)[kSize]) const {
    const int file = open(path_, O_RDONLY | O_CLOEXEC);
    if (file < 0) return {};
    size_t size = 0;
    for (ssize_t got = 1; got > 0 && size < kSize; size += static_cast<size_t>(std::max<ssize_t>(got, 0))) {
      got = read(file, buffer + size, kSize - size);
    }
    close(file);
    return {buffer, size};
  }
  const char* c_str() const { return path_; }

 private:
  char path_[96] = {};
  size_t size_ = 0;
};

// The next number of a text, which it is removed from. Nothing at the end.
std::optional<int64_t> TakeNumber(absl::string_view& text, int base = 10) {
  const auto digit = [base](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (base == 16 && c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  while (!text.empty() && digit(text[0]) < 0) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  int64_t number = 0;
  for (; !text.empty() && digit(text[0]) >= 0; text.remove_prefix(1)) number = number * base + digit(text[0]);
  return number;
}

// The processes below one, but not `without` and what is below them.
class ProcessTree {
 public:
  explicit ProcessTree(pid_t root, std::span<const pid_t> without = {}) : without_(without) {
    pids_[size_++] = root;
    for (size_t next = 0; next < size_; ++next) AddChildrenOf(pids_[next]);
  }
  // Without the root.
  std::span<const pid_t> pids() const { return {pids_ + 1, size_ - 1}; }

 private:
  void AddChildrenOf(pid_t pid) {
    const ProcPath tasks = ProcPath().Text("/proc/").Number(pid).Text("/task");
    // Not with readdir(), which allocates.
    const int folder = open(tasks.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    alignas(8) char entries[4096];
    for (ssize_t got = 0; (got = getdents64(folder, entries, sizeof(entries))) > 0;) {
      for (ssize_t at = 0; at < got;) {
        const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        absl::string_view name = entry->d_name;
        if (const std::optional<int64_t> task = TakeNumber(name)) AddChildrenOf(pid, *task);
      }
    }
    close(folder);
  }
  void AddChildrenOf(pid_t pid, int64_t task) {
    char text[8192];
    absl::string_view left =
        ProcPath().Text("/proc/").Number(pid).Text("/task/").Number(task).Text("/children").Read(text);
    while (const std::optional<int64_t> child = TakeNumber(left)) {
      const auto found = static_cast<pid_t>(*child);
      if (std::find(without_.begin(), without_.end(), found) != without_.end()) continue;
      if (size_ == std::size(pids_)) return;
      pids_[size_++] = found;
    }
  }

  const std::span<const pid_t> without_;
  pid_t pids_[4096];
  size_t size_ = 0;
};

int64_t NumberBehind(absl::string_view text, absl::string_view name) {
  const size_t at = text.find(name);
  if (at == absl::string_view::npos) return 0;
  text.remove_prefix(at + name.size());
  return TakeNumber(text).value_or(0);
}

int64_t MemoryBelow(pid_t root) {
  int64_t bytes = 0;
  const ProcessTree tree(root);
  for (const pid_t pid : tree.pids()) {
    char text[4096];
    const absl::string_view status = ProcPath().Text("/proc/").Number(pid).Text("/status").Read(text);
    bytes += (NumberBehind(status, "\nRssAnon:") + NumberBehind(status, "\nRssShmem:")) << 10;
  }
  return bytes;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void ForgetInheritedMemory() {}  // the sanitizers have memory of their own
#else
// Gives back the pages from `begin` to `end`, but not those within 1 MiB of the addresses `kept`, which ascend.
void DropPages(uint64_t begin, uint64_t end, std::span<const uint64_t> kept) {
  constexpr uint64_t kAround = 1 << 20;
  for (const uint64_t address : kept) {
    const uint64_t first = (address - kAround) & ~(kAround - 1), behind = (address + 2 * kAround) & ~(kAround - 1);
    if (behind <= begin || first >= end) continue;
    if (first > begin) madvise(reinterpret_cast<void*>(begin), first - begin, MADV_DONTNEED);
    begin = std::min(behind, end);
  }
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// Gives back what this process shares with the one that it was forked from. Otherwise each page that the other, which
// may hold a model, writes to from now on would be copied, and stay here until this process ends. Nothing of it is used
// from now on but the stack and what the C library has of the thread, such as errno; functions are found already,
// because programs are linked with -z now.
void ForgetInheritedMemory() {
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  std::array<uint64_t, 2> kept = {reinterpret_cast<uint64_t>(&file), reinterpret_cast<uint64_t>(&errno)};
  std::sort(kept.begin(), kept.end());
  char text[4096];
  size_t size = 0;
  for (ssize_t got = 0; (got = read(file, text + size, sizeof(text) - size)) > 0;) {
    size += static_cast<size_t>(got);
    absl::string_view lines(text, size);
    for (size_t end = 0; (end = lines.find('\n')) != absl::string_view::npos; lines.remove_prefix(end + 1)) {
      // 7f00-7f10 rw-p 00000000 00:00 0   NAME
      absl::string_view line = lines.substr(0, end);
      const auto begin = static_cast<uint64_t>(TakeNumber(line, 16).value_or(0));
      const auto behind = static_cast<uint64_t>(TakeNumber(line, 16).value_or(0));
      if (line.substr(0, 6) != " rw-p ") continue;
      line.remove_prefix(6);
      int64_t inode = 0;
      for (int i = 0; i < 4; ++i) inode = TakeNumber(line, 16).value_or(0);  // offset, device, inode
      if (inode == 0 && behind - begin >= 1 << 20) DropPages(begin, behind, kept);
    }
    memmove(text, lines.data(), lines.size());
    size = lines.size();
  }
  close(file);
}
#endif

// Closes all descriptors but these: this process must not keep open what its parent closes.
void KeepOnly(std::array<int, 3> descriptors) {
  std::sort(descriptors.begin(), descriptors.end());
  int next = 0;
  for (const int kept : descriptors) {
    if (kept > next) close_range(static_cast<unsigned>(next), static_cast<unsigned>(kept) - 1, 0);
    next = kept + 1;
  }
  close_range(static_cast<unsigned>(next), ~0U, 0);
}

ProcessEnd EndOf(int status) {
  if (WIFEXITED(status)) return {.how = ProcessEnd::How::kExited, .code = WEXITSTATUS(status)};
  return {.how = ProcessEnd::How::kSignaled, .code = WTERMSIG(status)};
}

// Reaps what has ended. Sets `end` once the program has.
enum class Left { kSome, kNone };
Left ReapAll(pid_t program, std::optional<ProcessEnd>& end) {
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == 0) return Left::kSome;
    if (pid < 0) return Left::kNone;
    if (pid == program) end = EndOf(status);
  }
}

// Orphans become children of the supervisor, so that killing all children again and again reaches all descendants.
void KillAll(pid_t program, std::optional<ProcessEnd>& end) {
  for (;;) {
    if (!end) kill(-program, SIGKILL);
    {
      const ProcessTree tree(getpid());
      for (const pid_t pid : tree.pids()) kill(pid, SIGKILL);
    }
    if (ReapAll(program, end) == Left::kNone) return;
    poll(nullptr, 0, 1);
  }
}

[[noreturn]] void Watch(pid_t program, int control, int report, int64_t memory_limit) {
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  const int signals = signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
  KeepOnly({control, report, signals});
  ForgetInheritedMemory();
  std::optional<ProcessEnd> end;
  for (;;) {
    ReapAll(program, end);
    if (end) break;
    std::array<pollfd, 2> watched = {pollfd{.fd = control, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = signals, .events = POLLIN, .revents = 0}};
    poll(watched.data(), watched.size(), memory_limit > 0 || signals < 0 ? kMemoryPeriodMs : -1);
    if (watched[0].revents != 0) {
      char signal = 0;
      if (read(control, &signal, 1) != 1) break;
      kill(-program, signal);
      kill(-program, SIGCONT);
    }
    signalfd_siginfo info;
    while (read(signals, &info, sizeof(info)) > 0) {
    }
    if (memory_limit <= 0) continue;
    if (const int64_t bytes = MemoryBelow(getpid()); bytes > memory_limit) {
      KillAll(program, end);
      ReportAndExit(report, {.how = ProcessEnd::How::kTooMuchMemory, .memory_bytes = bytes});
    }
  }
  KillAll(program, end);
  ReportAndExit(report, end.value_or(ProcessEnd{.how = ProcessEnd::How::kSignaled, .code = SIGKILL}));
}

}  // namespace

bool KillAdopted(std::span<const pid_t> kept) {
  const ProcessTree tree(getpid(), kept);
  for (const pid_t pid : tree.pids()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, WNOHANG);  // fails for one that is not a child, or not yet
  }
  return !tree.pids().empty();
}

std::vector<pid_t> DescendantsOfThisProcess() {
  const ProcessTree tree(getpid());
  return {tree.pids().begin(), tree.pids().end()};
}

pid_t ForkWithoutHandlers() {
#ifdef __SANITIZE_THREAD__
  // The sanitizer intercepts only this one. Unless it knows of the fork, a lock that one of its threads holds now stays
  // locked in the child, which then waits for it for ever.
  return fork();
#else
  return _Fork();
#endif
}

void Supervise(const SupervisorTask& task) {
  setsid();  // what a terminal sends to its programs is for this process's parent
  prctl(PR_SET_NAME, "tdock-supervise");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGCONT);  // if someone has stopped this process, it still sees that its parent has ended
  const pid_t self = getpid();
  const pid_t program = ForkWithoutHandlers();
  if (program == 0) RunProgram(task, self);
  if (program < 0) ReportAndExit(task.report, {.how = ProcessEnd::How::kNotRun, .code = errno});
  setpgid(program, program);
  Watch(program, task.control, task.report, task.limits.memory_bytes);
}

}  // namespace tdock
