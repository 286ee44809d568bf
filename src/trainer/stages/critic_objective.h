// What a critic is trained towards.
#pragma once

#include <memory>

#include "trainer/algo/value_loss.h"
#include "trainer/stages/objective.h"

namespace tdock::trainer {

// algo::ComputeValueLoss() with the columns values (where values are clipped) and returns. Figures, means over the
// tokens that count, under verl's names: critic/vf_loss, critic/vf_clipfrac, critic/vpred_mean, and
// critic/vf_explained_var, the share of the variance of the returns of a mini-batch that its old values explain
// (columns values).
std::shared_ptr<const Objective> MakeCriticObjective(const algo::ValueLossOptions& options);

}  // namespace tdock::trainer
