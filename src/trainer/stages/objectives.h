// The objectives of the recipes.
#pragma once

#include <memory>

#include "trainer/algo/policy_loss.h"
#include "trainer/stages/objective.h"

namespace tdock::trainer {

// Cross-entropy of the response tokens that the mask counts: −Σ log p / token_count. Figure train/loss.
std::shared_ptr<const Objective> MakeSupervisedObjective();

// algo::ComputeActorLoss() with the columns old_log_probs, ref_log_prob and advantages. Figures, token means:
// actor/pg_loss, actor/kl_loss, actor/entropy, actor/pg_clipfrac, actor/ppo_kl; and actor/fresh_ratio_deviation, the
// largest |ratio − 1| where the old log-probabilities are of the weights as they are now.
// Throws c10::Error for options with which it could never run: it knows tokens only, so neither kinds nor aggregations
// of sequences, nor kinds of selected tokens; and the entropy has no gradient, so entropy_coef must be 0.
std::shared_ptr<const Objective> MakeClippedObjective(const algo::ActorLossOptions& options);

}  // namespace tdock::trainer
