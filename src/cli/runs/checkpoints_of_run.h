// The checkpoints in the folder of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/run_log/run_summary.h"

namespace tdock::cli {

struct StoredCheckpoint {
  trainer::CheckpointPlace place;
  std::string path;
  uint64_t bytes = 0;
  std::optional<trainer::Manifest> manifest;  // nothing if it is missing or damaged; files were not looked at
};

// The oldest first. FailedPrecondition, naming the file, if a newer version of the program has written one.
absl::StatusOr<std::vector<StoredCheckpoint>> CheckpointsOf(Env& env, const std::string& run);

// What makes a checkpoint of the run the best: `metric`, or if that is empty trainer.best_metric of the run, or else
// the first of val/accuracy, val/reward/mean and val/loss that its checkpoints have.
struct BestRule {
  std::string metric;  // empty: there is none
  bool greater = true;
};
BestRule BestRuleOf(const trainer::RunSummary& run, const std::vector<StoredCheckpoint>& checkpoints,
                    const std::string& metric);

// The index of the best; of equals the first, as a run keeps it. Nothing if none has the metric.
std::optional<size_t> BestCheckpoint(const std::vector<StoredCheckpoint>& checkpoints, const BestRule& rule);

}  // namespace tdock::cli
