// The sections `actor` and `algorithm`, of recipes that learn from rewards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/spec.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/advantage_stage.h"

namespace tdock::trainer {

struct ActorSection {
  int64_t ppo_mini_batch_size = 0;  // 0: see MiniBatchSize()
  PassSection pass;
  int64_t ppo_epochs = 1;
  double target_kl = 0;
  int64_t loss_scale_factor = 0;
  double ptx_coef = 0;
  int64_t ptx_batch_size = 32;
  std::vector<std::string> ptx_files;
  algo::ActorLossOptions loss = {.clip_low = 0.2, .clip_high = 0.2, .dual_clip = 3.0};
  algo::CovarianceRange clip_cov = {};
  double kl_cov_fraction = 0.0002;
  OptimSection optim;
};

enum class RolloutWeights { kNone, kToken, kSequence };
// Whether the rollout's log-probabilities stand for those of the policy before a step.
enum class BypassMode { kWhereEqual, kAlways, kNever };
enum class KlControl { kFixed, kAdaptive };

struct AlgorithmSection {
  AdvantageOptions advantage;
  bool use_kl_in_reward = false;
  algo::KlRewardOptions kl = {.coef = 0.001};
  KlControl kl_control = KlControl::kFixed;
  algo::KlTarget kl_target = {};
  RolloutWeights rollout_is = RolloutWeights::kNone;
  double rollout_is_threshold = 2.0;
  BypassMode bypass_mode = BypassMode::kWhereEqual;
  double clip_score = 0;           // 0: no limit
  int64_t generation_batches = 1;  // of recipes that bind it: parts of a step whose mini-batches are cut apart
  // reward.overlong_buffer, in tokens
  struct {
    bool enable = false;
    int64_t len = 0;
    double penalty_factor = 1.0;
  } overlong_buffer;

  bool has_kl_in_reward() const { return use_kl_in_reward && kl.coef != 0; }
  // Whether answers are compared with the likeliest one.
  bool needs_baseline() const { return advantage.estimator == AdvantageEstimator::kRemax; }
  std::optional<algo::OverlongOptions> overlong_options(const RolloutSection& rollout) const;
  AdvantageOptions advantage_options(const RolloutSection& rollout) const;
};

// The keys of both, and the checks between them. All must outlive the spec.
void BindActor(config::Spec& spec, ActorSection& actor, AlgorithmSection& algorithm, const RunConfig& run,
               const RolloutSection& rollout);

ActorObjectiveOptions ObjectiveOptions(const ActorSection& actor, const AlgorithmSection& algorithm,
                                       const RolloutSection& rollout);

// The mini-batch of a step of `prompts` where none is given: the largest of 16 to 32 prompts that divides them, else
// all.
int64_t DefaultMiniBatch(int64_t prompts);
// Prompts of an optimizer step: actor.ppo_mini_batch_size, or the default for those that are cut together.
int64_t MiniBatchSize(const ActorSection& actor, const AlgorithmSection& algorithm, const RunConfig& run);

// Whether the recipe needs the log-probabilities of a reference model.
inline bool NeedsReference(const ActorSection& actor, const AlgorithmSection& algorithm) {
  return actor.loss.kl_coef != 0 || algorithm.has_kl_in_reward();
}

}  // namespace tdock::trainer
