// What a model that learns given answers is trained towards.
#pragma once

#include <memory>
#include <string>

#include "trainer/stages/objective.h"

namespace tdock::trainer {

// Cross-entropy of the response tokens that the mask counts, a mean over the tokens of the mini-batch, times `weight`.
// Figures: `prefix` + "loss", before the weight, and `prefix` + "tokens".
std::shared_ptr<const Objective> MakeSupervisedObjective(std::string prefix = "train/", double weight = 1);

}  // namespace tdock::trainer
