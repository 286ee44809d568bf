// Environments and agents that are programs: a pool of their processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"

namespace tdock::environment {

struct ProgramEnvironmentOptions {
  std::string name;                    // in messages and names of metrics
  std::vector<std::string> arguments;  // the program itself first
  absl::string_view script = {};       // see reward::LineProcessOptions
  EnvironmentSetup setup = {};
  int64_t processes = 1;
  absl::Duration timeout = absl::Seconds(30);        // for an event of an episode that waits for one
  absl::Duration start_timeout = absl::Seconds(60);  // for the hello
  int64_t max_restarts = 5;                          // in a row, without an event
  int64_t memory_bytes = 0;                          // of a process with its children; 0: no limit
};

// Start() starts one process; the others are started when there are more episodes than those that run can play. An
// episode for which no process is free waits without a time limit: each goes to the process with the fewest.
//
// A process that closes its output, gives no event in time of an episode that waits for one, writes what is not of the
// protocol or of no episode of its own, or uses too much memory is killed, and started again when it is needed. Its
// episodes get errors: DeadlineExceeded for the one that waited too long, InvalidArgument or Unavailable for what
// happened to the process; Aborted for the other episodes of a process that one of them has failed. Wait() fails for
// good after more than max_restarts such failures in a row without an event between them.
std::unique_ptr<Environment> MakeProgramEnvironment(ProgramEnvironmentOptions options);

}  // namespace tdock::environment
