// Another program, run as a child.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tdock {

// Its standard output is read here; its standard error is this process's. The child is killed when the thread that
// started it ends, so that it never outlives its owner. Not thread-safe.
class ChildProcess {
 public:
  // `arguments` begin with the path of the program. Errors name it: NotFound if it does not exist.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& arguments);
  // Kills the child if it is running.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The next line of its output, without the line end. OutOfRange at the end of the output, DeadlineExceeded.
  absl::StatusOr<std::string> ReadLine(absl::Duration within);
  // Does nothing if it has ended.
  void Signal(int signal);
  // Waits until it has ended, and returns its exit code, or 128 and the number of the signal that ended it.
  // DeadlineExceeded.
  absl::StatusOr<int> Wait(absl::Duration within);

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}

  // The exit code, if the child has ended.
  std::optional<int> Poll();

  const pid_t pid_;
  const int output_;
  std::string read_;
  std::optional<int> code_;
};

// The folder of this process's executable.
std::string FolderOfThisProgram();

}  // namespace tdock
