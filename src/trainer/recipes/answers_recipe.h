// What recipes share that learn from rewards for answers of their own:
//
//   feeder ─► rollout ─► reward ─► (baseline) ─► (ref) ─► (old_log_prob) ─► … ─► advantage ─► … ─► actor
//
// The reference model and its column are there only where a KL to it is in the loss or in the reward; the policy's
// log-probabilities before the step are computed only where those of the rollout are others; the baseline is ReMax's.
// The reward is that of the run's rules and programs, or of a reward model. With algorithm.filter_groups the first two
// stages come in rounds: see gather.h.
//
// With an environment, the rollout plays episodes and gives their rewards, and there is no stage for those.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/recipes/actor_section.h"
#include "trainer/recipes/recipes.h"
#include "trainer/recipes/reward_model_section.h"
#include "trainer/stages/model_scores.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {

class AnswersRecipe : public Recipe {
 public:
  RunConfig& config() final { return config_; }
  void Bind(config::Spec& spec) override;

  data::Phase phase() const final { return data::Phase::kPrompt; }
  int64_t samples_per_prompt() const final { return config_.rollout.n; }
  int64_t longest_tokens() const final { return config_.data.max_prompt_length + config_.rollout.max_response_length; }
  std::string longest_keys() const final { return "data.max_prompt_length + data.max_response_length"; }
  StepShape shape() const override;
  std::vector<ModelRole> models() const override;
  std::optional<data::DataConfig> ptx_data() const final;
  absl::StatusOr<Plan> MakePlan(const RunParts& parts) final;

 protected:
  using Stages = std::vector<std::unique_ptr<Stage>>;

  struct Config : RunConfig {
    RolloutSection rollout;
    ActorSection actor;
    AlgorithmSection algorithm;
    PassSection ref;
    RewardModelSection reward_model;
  };

  explicit AnswersRecipe(const char* name) {
    config_.recipe = name;
    config_.trainer.evaluations = {"reward"};
  }

  // What a recipe has beside the rest: columns, and stages before the advantages and before the actor.
  virtual std::vector<ColumnSpec> MoreColumns() const { return {}; }
  virtual void AddBeforeAdvantage(const RunParts& /*parts*/, Stages& /*stages*/) {}
  virtual void AddBeforeActor(const RunParts& /*parts*/, Stages& /*stages*/) {}
  // Changes how the actor is trained.
  virtual void Adapt(UpdateOptions& /*actor*/) const {}

  ForwardOptions Scoring(const RunParts& parts) const {
    return parts.forward(config_.rollout.temperature, config_.ref);
  }

  int64_t MiniBatchPrompts() const { return MiniBatchSize(config_.actor, config_.algorithm, config_); }

  Config config_;

 private:
  void BindServers(config::Spec& spec);
  std::shared_ptr<const Objective> ActorObjective() const;
  bool BypassesOldLogProbs(const model::Decoder& decoder) const;
  absl::Status AddRollout(const RunParts& parts, bool bypass, Stages& stages) const;
  absl::Status AddTurns(const RunParts& parts, const RolloutPuts& puts, Stages& stages) const;
  void AddReward(const RunParts& parts, Stages& stages);
  absl::Status AddEvaluations(const RunParts& parts, Plan& plan);
  absl::Status AddEpisodeEvaluation(const RunParts& parts, const AnswerEvaluationOptions& options, Plan& plan) const;
  void AddBaseline(const RunParts& parts, Stages& stages) const;
  void AddActor(const RunParts& parts, Stages& stages) const;
  LengthLimits Limits() const;
  int64_t TokenBudget() const;
  Gathering WhatIsGathered(const Stages& stages) const;
  absl::StatusOr<Stages> MakeStages(const RunParts& parts);

  std::optional<Policy> reference_;
  std::unique_ptr<ModelScores> scores_;  // of the reward model, where there is one
};

}  // namespace tdock::trainer
