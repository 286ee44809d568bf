// The section `reward_model`: a model whose scores are the rewards.
#pragma once

#include <cstdint>

#include "core/config/spec.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/preference_objective.h"

namespace tdock::trainer {

struct RewardModelSection {
  ModelSection model;  // its path; the rest is the policy's
  AnswerScore score = AnswerScore::kLastToken;
  int64_t micro_batch_size_per_gpu = 0;

  bool used() const { return !model.path.empty(); }
};
void BindRewardModel(config::Spec& spec, RewardModelSection& section);

}  // namespace tdock::trainer
