// Another program with pipes to its standard streams, which never outlives its owner.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tdock {

// 0: no limit.
struct ProcessLimits {
  // Of the program and its descendants together: the memory that is no file's, counted several times a second, where
  // what processes share counts for each.
  int64_t memory_bytes = 0;
  // Of each process alone (RLIMIT_AS, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NOFILE).
  int64_t address_space_bytes = 0;
  int64_t cpu_seconds = 0;
  int64_t file_bytes = 0;
  int64_t open_files = 0;
  // Of the user (RLIMIT_NPROC), which the superuser does not have.
  int64_t processes = 0;
};

struct ProcessOptions {
  // The program and its arguments. Without a slash, the program is looked for in PATH.
  std::vector<std::string> arguments;
  // As NAME=VALUE; nothing: that of this process.
  std::optional<std::vector<std::string>> environment = {};
  std::string folder = {};  // its working directory; empty: that of this process
  ProcessLimits limits = {};
  // Further descriptors: one of this process, and its number there, from 3 to 63.
  std::vector<std::pair<int, int>> descriptors = {};
  // Texts that it reads from such descriptors: one, and the number of its descriptor there.
  std::vector<std::pair<absl::string_view, int>> texts = {};
  bool core_dumps = false;  // where false, it leaves none, whatever the limits of this process are
};

// The number in ProcessOptions::texts of a Python script. On a command line every user would see all of it.
inline constexpr int kScriptNumber = 5;
// The program for `python -c` in its place, which runs the script that it reads there; tracebacks call it <NAME>.
std::string ScriptReader(absl::string_view name);

// How a program ended.
struct ProcessEnd {
  enum class How { kExited, kSignaled, kTooMuchMemory, kNotRun };
  How how = How::kExited;
  int code = 0;  // of the exit, of the signal, or errno
  int64_t memory_bytes = 0;

  // "exited with code 2", "was killed by signal 9 (Killed)".
  std::string ToString() const;
};

// The program has a process group of its own below a supervising process, which kills it and all of its descendants,
// also those that left its group or session, when the program ends, when Kill() is called, and when this process ends,
// however it does, also if someone has stopped the supervising process or the program. If someone kills the supervising
// process itself, the program dies, but not its descendants: see KillAdopted(). Not thread-safe, but not tied to a
// thread either. The program inherits no descriptor but those that it is given.
class SupervisedProcess {
 public:
  // Errors name the program: NotFound if it does not exist, PermissionDenied if it cannot be executed.
  static absl::StatusOr<std::unique_ptr<SupervisedProcess>> Start(const ProcessOptions& options);
  // Kills all that still runs.
  ~SupervisedProcess();
  SupervisedProcess(const SupervisedProcess&) = delete;
  SupervisedProcess& operator=(const SupervisedProcess&) = delete;

  struct Moved {
    size_t written = 0;    // bytes of the input that the program's pipe has accepted
    std::string out, err;  // what the program has written; at most 64 KiB of each
  };
  // Waits until the program accepts some of `input` or has written something. DeadlineExceeded; OutOfRange once both of
  // its outputs are closed and it accepts nothing.
  absl::StatusOr<Moved> Move(absl::string_view input, absl::Time deadline);
  // What poll() must watch to wait for several processes: Move() has something to do once one of these is ready.
  // `has_input`: it will be given some. Descriptors below 0 are to be ignored, as poll() does.
  std::array<pollfd, 3> Watched(bool has_input) const;

  // Whether the program may still read its standard input, or write to its standard output.
  bool input_open() const { return input_ >= 0; }
  bool output_open() const { return output_ >= 0; }
  // The program finds the end of its standard input.
  void CloseInput();

  // Sends a signal to the program's process group, and lets it go on if it was stopped, so that it can handle it. Does
  // nothing once the program has ended.
  void Signal(int signal);

  // For poll(): ready once Wait() would not wait.
  pollfd WatchedEnd() const { return {.fd = end_ ? -1 : report_, .events = POLLIN, .revents = 0}; }
  // Lets the supervising process go on if someone has stopped it, because Wait() would wait for it. Signal() and Kill()
  // do so, too.
  void Resume();
  // Waits until it has ended and nothing of it is left. DeadlineExceeded.
  absl::StatusOr<ProcessEnd> Wait(absl::Time deadline);
  // Kills the program and all of its descendants, and waits until they are gone; but only 10 s for one that the kernel
  // does not let die.
  void Kill();
  // The same without waiting: Wait() does.
  void StartKill();

  // Of the supervising process, a child of this one.
  pid_t supervisor() const { return supervisor_; }

 private:
  SupervisedProcess() = default;

  void Reap();

  pid_t supervisor_ = -1;
  // This process's ends of the pipes; -1: closed.
  int input_ = -1, output_ = -1, errors_ = -1, control_ = -1, report_ = -1;
  std::optional<ProcessEnd> end_;
  std::string program_;
};

// For a process that has set PR_SET_CHILD_SUBREAPER, and thereby adopts what supervising processes leave that someone
// kills: kills all of its descendants but those `kept` and what is below them. Returns whether some were found: only
// once there were none are they gone.
bool KillAdopted(std::span<const pid_t> kept);
std::vector<pid_t> DescendantsOfThisProcess();

}  // namespace tdock
