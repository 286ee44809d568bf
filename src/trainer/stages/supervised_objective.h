// What a model that learns given answers is trained towards.
#pragma once

#include <memory>

#include "trainer/stages/objective.h"

namespace tdock::trainer {

// Cross-entropy of the response tokens that the mask counts, a mean over the tokens of the mini-batch. Figures
// train/loss and train/tokens.
std::shared_ptr<const Objective> MakeSupervisedObjective();

}  // namespace tdock::trainer
