// What an actor that learns from rewards is trained towards.
#pragma once

#include <memory>
#include <optional>

#include "trainer/algo/covariance.h"
#include "trainer/algo/importance.h"
#include "trainer/algo/policy_loss.h"
#include "trainer/stages/objective.h"

namespace tdock::trainer {

struct ActorObjectiveOptions {
  algo::ActorLossOptions loss;
  // Weights of the tokens by how likely training finds them, against the rollout; none: every token weighs 1.
  std::optional<algo::ImportanceOptions> rollout_weights = {};
  algo::CovarianceRange clip_cov = {};  // which tokens clip-cov leaves out
  double kl_cov_fraction = 0.0002;      // how many tokens kl-cov pulls back
};

// algo::ComputeActorLoss() with the columns old_log_probs, advantages, rollout_log_probs and, where kl_coef is not 0,
// ref_log_prob.
//
// Which tokens clip-cov and kl-cov select, and the weights of the rollout, follow from the whole mini-batch. Throws
// c10::Error for options that algo::CheckActorLossOptions() refuses.
//
// Figures, means over the tokens that count unless said otherwise, under verl's names:
//   actor/pg_loss            the policy loss of a token, before weights
//   actor/kl_loss            the KL to the reference; with ref_log_prob
//   actor/entropy
//   actor/pg_clipfrac        clipped tokens; actor/pg_clipfrac_lower: those that the dual clip held
//   actor/ppo_kl             old − new
//   actor/fresh_ratio_deviation  the largest |ratio − 1| where the old log-probabilities are of the weights as they are
//   rollout_corr/...         between old and rollout log-probabilities: algo::RolloutMismatch, and with weights
//                            algo::ImportanceFigures, as rollout_corr/rollout_is_mean and so on; means over
//                            mini-batches
std::shared_ptr<const Objective> MakeActorObjective(const ActorObjectiveOptions& options);

}  // namespace tdock::trainer
