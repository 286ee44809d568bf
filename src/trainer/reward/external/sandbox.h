// Programs that nobody has read, in a sandbox.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/reward/external/patience.h"

namespace tdock::reward {

struct SandboxOptions {
  std::string python = "python3";           // with a slash: its path; otherwise it is looked for in PATH
  int64_t memory_bytes = int64_t{1} << 30;  // of the program (RLIMIT_AS)
  int64_t file_bytes = 16 << 20;            // of each file, and of all in its /tmp
  int64_t output_bytes = 1 << 20;           // of its standard output
  // What may go without isolation where the machine cannot give it: "network", "everything".
  std::vector<std::string> allow_unisolated = {};
};

// InvalidArgument for a name in SandboxOptions::allow_unisolated that is not known.
absl::Status CheckUnisolated(const std::vector<std::string>& names);

// What a program did.
struct SandboxRun {
  bool begun = false;     // the driver ran
  bool in_time = false;   // it ended by itself
  std::string output;     // at most output_bytes
  bool too_much = false;  // it wrote more, and was killed
  int exit_code = 0;      // as of a shell
  std::string words;      // the end of its standard error
};

// Python programs, each in a process with no network, the system's files and those of Python to read, a /tmp of its
// own, no other processes in sight, and a filter of system calls, under bubblewrap. Thread-safe.
class Sandbox {
 public:
  // Tries the sandbox. FailedPrecondition if bubblewrap is not there or the machine does not let it isolate, naming
  // what cannot be; NotFound without Python.
  static absl::StatusOr<Sandbox> Make(const SandboxOptions& options);

  // Runs the driver with this task (JSON) and this standard input until the deadline; nothing of it is left then. The
  // error of the stop check; Unavailable if the machine cannot run it.
  absl::StatusOr<SandboxRun> Run(const std::string& task, const std::string& input, const Patience& patience) const;

 private:
  enum class Level { kFull, kNoNetwork, kNone };
  explicit Sandbox(SandboxOptions options) : options_(std::move(options)) {}

  absl::Status FindPython();
  absl::Status Probe();
  std::vector<std::string> Command() const;

  SandboxOptions options_;
  Level level_ = Level::kFull;
  std::string python_;                // its path
  std::vector<std::string> folders_;  // that Python needs beside the system's
  std::string filter_;                // of system calls, compiled
};

}  // namespace tdock::reward
