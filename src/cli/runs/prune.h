// What `tdock runs prune` removes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/run_log/run_summary.h"

namespace tdock::cli {

struct PruneOptions {
  bool checkpoints = false;  // those that are neither among the newest `keep` nor the best, and what is left of others
  int64_t keep = 1;
  std::string best;         // the metric; "": as BestRuleOf() chooses it
  bool failed = false;      // whole folders of runs that cannot go on
  bool unfinished = false;  // the same, and of those that can
};

struct Removal {
  std::string path;
  uint64_t bytes = 0;
  std::string why;
  std::optional<trainer::CheckpointPlace> checkpoint;  // that it is
};

// What to remove of a run; nothing of one that is running. A checkpoint without a readable manifest is removed, and
// does not count as one of the newest. InvalidArgument if no checkpoint has the metric `best`.
absl::StatusOr<std::vector<Removal>> PlanRemovals(Env& env, const trainer::RunSummary& run,
                                                  const PruneOptions& options);

// Removes it, holding the run's lock. AlreadyExists, with nothing removed, if the run is at work again.
absl::Status Remove(Env& env, const trainer::RunSummary& run, const std::vector<Removal>& removals);

}  // namespace tdock::cli
