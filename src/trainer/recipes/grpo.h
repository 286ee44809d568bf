// The GRPO recipe: a supervised warm-up, then reinforcement learning with group-relative advantages.
//
// One step, with its stages in sequence on an embedded dock:
//
//   feeder ─► rollout ─► reward ─► ref ─► old_log_prob ─► advantage ─► actor (one take per mini-batch)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/recipes/grpo_config.h"
#include "trainer/recipes/run_context.h"
#include "trainer/reward/reward.h"

namespace tdock::trainer {

struct GrpoResult {
  std::string run_dir;
  double warmup_accuracy = 0;  // held out, before the first step of GRPO
  double final_accuracy = 0;   // held out, after the last
};

// A run that was prepared successfully, and has its folder.
class GrpoRun {
 public:
  virtual ~GrpoRun() = default;

  // Trains, and leaves a checkpoint in the run directory. Call it once. An error names the phase and the step, and what
  // failed in it: the stage and the samples, or the file; everything written before stays readable, and the report says
  // how far the run got. A run that is told to stop is Cancelled, between two steps. Does not throw.
  virtual absl::StatusOr<GrpoResult> Run() = 0;
};

// Reads the inputs that `config` names and, last, creates the run directory. A run that cannot work (a missing device,
// an unreadable model, an answer longer than the model's positions, a folder that is in use) is refused before anything
// is written.
//
// `reward` scores the samples; null: ExactMatch. `context`, `reward` and what they refer to must outlive the run. Does
// not throw.
absl::StatusOr<std::unique_ptr<GrpoRun>> PrepareGrpo(const GrpoConfig& config, RunContext context,
                                                     reward::Reward* reward = nullptr);

}  // namespace tdock::trainer
