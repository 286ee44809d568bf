// The section `critic`, of recipes with one.
#pragma once

#include <cstdint>

#include "core/config/spec.h"
#include "trainer/loop/sections.h"
#include "trainer/recipes/actor_section.h"
#include "trainer/stages/critic_objective.h"

namespace tdock::trainer {

struct CriticSection {
  ModelSection model;
  OptimSection optim;
  int64_t ppo_mini_batch_size = 0;
  PassSection pass;
  int64_t ppo_epochs = 0;  // 0: the actor's
  algo::ValueLossOptions loss;
  int64_t warmup = 0;  // trainer.critic_warmup
};

// Its keys, and the checks between them and the actor's. All must outlive the spec.
void BindCritic(config::Spec& spec, CriticSection& critic, const ActorSection& actor, const AlgorithmSection& algorithm,
                const RunConfig& run, const RolloutSection& rollout);

}  // namespace tdock::trainer
