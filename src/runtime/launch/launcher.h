// Starts the ranks of a run on this machine, and ends them together.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::runtime {

struct LaunchOptions {
  std::vector<std::string> program = {};  // and its arguments
  int ranks = 1;                          // on this machine
  int nodes = 1;                          // machines, each with as many ranks
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free one, for one machine
  int restarts = 0;     // how often all are started again after a failure
  absl::Duration grace = absl::Seconds(10);
  std::string log_dir = {};  // empty: no logs
};

struct LaunchEnd {
  int exit_code = 0;
  std::string message = {};  // what to say of it; empty if all is well
};

// Runs `program` as each rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,
// MASTER_PORT and TDOCK_RESTART_COUNT in its environment and an empty standard input, until all have ended. Their
// lines go to the standard streams of this process, in a run of several ranks with "[rank 1] " before each, and to
// rank-1.log and so on in `log_dir`, where they are added to what is there.
//
// When a rank fails, the others are ended (runtime/launch/attempt.h), and all are started again, with a new free port,
// as often as `restarts` says. The exit code is that of the rank that failed first, or 128 and the number of the
// signal by which it or this process was ended; 0 after a signal if all ranks ended with 0.
//
// Nothing of the ranks outlives this process, however it ends, and whatever of it is killed or stopped, unless someone
// kills both this process and one of the supervising processes (core/base/supervised_process.h) at once. For a process
// without other threads, which it makes adopt orphans.
//
// InvalidArgument lists all that is wrong with the options, before anything is started; NotFound, PermissionDenied and
// the like if the program cannot be run, or a log not be written.
absl::StatusOr<LaunchEnd> Launch(const LaunchOptions& options, Env& env);

}  // namespace tdock::runtime
