// The GRPO recipe: a supervised warm-up, then reinforcement learning with group-relative advantages.
//
// One step, its stages one after the other on an embedded dock:
//
//   feeder ─► rollout ─► reward ─► ref ─► old_log_prob ─► advantage ─► actor (one take per mini-batch)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/recipes/grpo_config.h"
#include "trainer/recipes/run_context.h"
#include "trainer/reward/reward.h"

namespace tdock::train {

struct GrpoResult {
  std::string run_dir;
  double warmup_accuracy = 0;  // held out, before the first step of GRPO
  double final_accuracy = 0;   // held out, after the last
};

// A run that could be prepared, and has its folder.
class GrpoRun {
 public:
  virtual ~GrpoRun() = default;

  // Trains, and leaves a checkpoint in the run directory. To be called once. An error names the phase and the step, and
  // what failed in it: the stage and the samples, or the file; what was written before it stays readable, and the
  // report says how far the run came. A run that is told to stop is Cancelled, between two steps. Throws nothing.
  virtual absl::StatusOr<GrpoResult> Run() = 0;
};

// Reads what `config` asks for and makes the run directory, last. What cannot run (a device that is not there, a model
// that cannot be read, an answer longer than the model's positions, a folder that is taken) is refused before anything
// is written.
//
// `reward` scores the samples; null: ExactMatch. What `context` and `reward` refer to outlives the run. Throws nothing.
absl::StatusOr<std::unique_ptr<GrpoRun>> PrepareGrpo(const GrpoConfig& config, RunContext context,
                                                     reward::Reward* reward = nullptr);

}  // namespace tdock::train
