#include "cli/runs/prune.h"

#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/runs/checkpoints_of_run.h"
#include "core/base/file_lock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/loop/run_checkpoints.h"

namespace tdock::cli {
namespace {

using trainer::RunState;

// What a process that was killed has left of a checkpoint, written or removed.
absl::Status AddUnfinished(Env& env, const std::string& folder, std::vector<Removal>& removals) {
  if (!env.Exists(folder)) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(folder));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, ".step-")) continue;
    const std::string path = JoinPath(folder, name);
    removals.push_back({path, trainer::MeasureFolder(path).bytes, "was never complete", std::nullopt});
  }
  return absl::OkStatus();
}

absl::Status AddCheckpoints(Env& env, const trainer::RunSummary& run, const PruneOptions& options,
                            std::vector<Removal>& removals) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> checkpoints, CheckpointsOf(env, run.path));
  const std::optional<size_t> best = BestCheckpoint(checkpoints, BestRuleOf(run, checkpoints, options.best));
  if (!best && !options.best.empty() && !checkpoints.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no checkpoint of ", EscapeForMessage(run.path, 1000),
                                                   " has the metric ", Quoted(options.best),
                                                   "; `tdock runs show` tells which they have"));
  }
  int64_t newest = 0;
  for (size_t i = checkpoints.size(); i-- > 0;) {
    const StoredCheckpoint& checkpoint = checkpoints[i];
    if (!checkpoint.manifest) {
      removals.push_back({checkpoint.path, checkpoint.bytes, "its manifest cannot be read", checkpoint.place});
    } else if (++newest > options.keep && i != best) {
      removals.push_back(
          {checkpoint.path, checkpoint.bytes, "neither among the newest nor the best", checkpoint.place});
    }
  }
  return AddUnfinished(env, trainer::CheckpointsPath(run.path), removals);
}

}  // namespace

absl::StatusOr<std::vector<Removal>> PlanRemovals(Env& env, const trainer::RunSummary& run,
                                                  const PruneOptions& options) {
  std::vector<Removal> removals;
  if (run.state == RunState::kRunning) return removals;
  const bool failed = run.state == RunState::kFailed && (options.failed || options.unfinished);
  if (failed || (run.state == RunState::kInterrupted && options.unfinished)) {
    removals.push_back(
        {run.path, run.bytes, absl::StrCat("the run ", failed ? "failed" : "was interrupted"), std::nullopt});
  } else if (options.checkpoints) {
    TDOCK_RETURN_IF_ERROR(AddCheckpoints(env, run, options, removals));
  }
  return removals;
}

absl::Status Remove(Env& env, const trainer::RunSummary& run, const std::vector<Removal>& removals) {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                         FileLock::Take(JoinPath(run.path, "lock"), "tdock runs prune"));
  trainer::CheckpointFolder checkpoints(env, trainer::CheckpointsPath(run.path));
  for (const Removal& removal : removals) {
    TDOCK_RETURN_IF_ERROR(removal.checkpoint ? checkpoints.Remove(*removal.checkpoint) : env.RemoveAll(removal.path));
  }
  return absl::OkStatus();
}

}  // namespace tdock::cli
