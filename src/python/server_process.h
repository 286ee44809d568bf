// A dock server in a process of its own, which ends with this one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "python/process.h"

namespace tdock::python {

// Thread-safe.
class ServerProcess {
 public:
  // Runs the command and waits until it prints that it is ready. Otherwise the error that it printed, or Unavailable.
  static absl::StatusOr<ServerProcess> Start(const std::vector<std::string>& command);

  pid_t pid() const;
  // The lines before "ready".
  const std::vector<std::string>& lines() const;
  // Asks it to end within this time, and then kills it. Returns its exit code, -1 in a process forked from this one.
  int Close(absl::Duration drain);

 private:
  class Child;

  explicit ServerProcess(std::shared_ptr<Child> child) : child_(std::move(child)) {}

  OfThisProcess<Child> child_;
};

}  // namespace tdock::python
