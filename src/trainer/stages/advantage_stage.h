// The stage that turns rewards into advantages.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "trainer/algo/kl.h"
#include "trainer/algo/overlong.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// Those of algo/advantage.h.
enum class AdvantageEstimator {
  kGrpo,
  kPassAtK,
  kRloo,
  kOpo,
  kGpg,
  kReinforcePlusPlus,
  kReinforcePlusPlusBaseline,
  kGae,    // with a critic
  kRemax,  // against the rewards of MakeBaselineStage()
};

struct AdvantageOptions {
  AdvantageEstimator estimator = AdvantageEstimator::kGrpo;
  bool divide_by_deviation = true;                              // of kGrpo and kPassAtK
  double gamma = 1.0;                                           // of kReinforcePlusPlus and kGae
  double lambda = 0.95;                                         // of kGae
  bool whiten = false;                                          // of kGae: the advantages
  double score_clip = std::numeric_limits<double>::infinity();  // rewards are clamped to ± this first
  // The KL of the policy that answered to the reference, taken off the rewards (algo::TokenRewards). A target adapts
  // the coefficient after each step, which is the stage's state.
  std::optional<algo::KlRewardOptions> kl = {};
  std::optional<algo::KlTarget> kl_target = {};
  // A penalty for long answers, of response_mask.size() tokens, added to the rewards. It is here and not where answers
  // are scored so that it holds whoever does that: this process, a model, or another process.
  std::optional<algo::OverlongOptions> overlong = {};
};

// Consumer "advantage", of groups. The samples of a step must come in one call: see algo/advantage.h. Reads rewards and
// response_mask, with `kl` also old_log_probs and ref_log_prob, of kRemax also reward_baselines, and writes advantages,
// 0 for masked tokens. With kGae it also reads values and writes returns.
//
// Figures under verl's names: critic/rewards, of samples, the sums of what their tokens got; critic/advantages and
// critic/returns, of tokens that count (where returns are not defined, they are the advantages); with `kl`
// actor/reward_kl_penalty, the mean over samples of that of their tokens, and actor/reward_kl_penalty_coeff. With
// `overlong` overlong/penalty, the mean over samples, and overlong/ratio, the share that has any. With a finite
// `score_clip` critic/score/clip_ratio, the share of samples whose reward is at it. Estimators that compare the samples
// of a group add critic/rewards/equal_share, the share of groups whose rewards are equal, which have no gradient.
std::unique_ptr<Stage> MakeAdvantageStage(const AdvantageOptions& options);

}  // namespace tdock::trainer
