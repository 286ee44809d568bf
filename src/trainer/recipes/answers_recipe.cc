#include "trainer/recipes/answers_recipe.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_environment.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/advantage_stage.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/turns_stage.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {

void AnswersRecipe::Bind(config::Spec& spec) {
  BindRun(spec, config_);
  BindRollout(spec, config_.rollout, /*samples=*/true);
  BindActor(spec, config_.actor, config_.algorithm, config_, config_.rollout);
  BindRewardModel(spec, config_.reward_model);
  BindRunEnvironment(spec, config_, config_.rollout);
  spec.Check({"reward_model.model.path", "algorithm.adv_estimator"}, [this]() -> std::vector<std::string> {
    if (!config_.environment.used()) return {};
    if (config_.reward_model.used()) return {"the environment gives the rewards of its episodes: remove one of both"};
    if (!config_.algorithm.needs_baseline()) return {};
    return {"remax compares with one answer, and an environment's episodes have several turns: choose grpo or rloo"};
  });
  BindEvaluations(spec, config_.trainer, {"reward", "win_rate"});
  spec.Check({"trainer.evaluations", "reward_model.model.path"}, [this]() -> std::vector<std::string> {
    if (!Evaluates(config_.trainer, "win_rate") || config_.reward_model.used()) return {};
    return {"a reward model says which answers win: name its folder, or remove win_rate"};
  });
  spec.Check({"reward_model.model.path", "trainer.external_stages"}, [this]() -> std::vector<std::string> {
    if (!config_.reward_model.used() || !absl::c_linear_search(config_.trainer.dock.external_stages, "reward"))
      return {};
    return {"either a reward model or another process gives the rewards: remove one of them"};
  });
  // A critic says of each answer alone what was to be expected.
  if (config_.algorithm.advantage.estimator != AdvantageEstimator::kGae) BindFilterGroups(spec, config_);
  BindAsync(spec, config_, [this] {
    const int64_t mini = MiniBatchPrompts();
    return (config_.data.train_batch_size + mini - 1) / mini * config_.actor.ppo_epochs;
  });
  if (config_.algorithm.advantage.estimator != AdvantageEstimator::kGae) {
    spec.Check({"algorithm.filter_groups.enable", "async_training.steps_ahead", "rollout.partial_rollout_max_split"},
               [this]() -> std::vector<std::string> {
                 if (!Streams(config_) || !config_.filter_groups.enable) return {};
                 return {"rounds of sampling belong to one step: remove one of them"};
               });
  }
  spec.Check({"rollout.partial_rollout_max_split", "data.max_response_length"}, [this]() -> std::vector<std::string> {
    if (config_.async.partial_rollout_max_split <= config_.rollout.max_response_length) return {};
    return {"an answer cannot be split into more parts than it may have tokens"};
  });
  spec.Check({"rollout.partial_rollout_max_split", "environment.max_turns"}, [this]() -> std::vector<std::string> {
    if (config_.async.partial_rollout_max_split == 1 || !config_.environment.used()) return {};
    return {"the answers of an environment's episodes are not interrupted: remove the first"};
  });
  for (const char* stage : {"rollout", "baseline", "ref", "old_log_prob"}) {
    spec.Check({absl::StrCat("trainer.dispatch_size.", stage), "rollout.n"},
               [this, stage]() -> std::vector<std::string> {
                 if (config_.trainer.executor.dispatch_size(stage) % config_.rollout.n == 0) return {};
                 return {"this stage takes all samples of a prompt together: a multiple of rollout.n is right"};
               });
  }
  BindPass(spec, "ref.log_prob_micro_batch_size_per_gpu",
           "Samples in one forward pass of the reference and old log-probabilities",
           "ref.log_prob_max_token_len_per_gpu", config_.ref);
  spec.Check({"rollout.quantization", "device", "model.compute_dtype", "model.batch_invariant"},
             [this]() -> std::vector<std::string> {
               const at::ScalarType dtype = config_.model.compute_dtype;
               const bool is_invariant = config_.device == "cpu" && (dtype == at::kFloat || dtype == at::kBFloat16) &&
                                         config_.model.batch_invariant;
               if (!config_.rollout.int8_weights || is_invariant) return {};
               return {
                   "products in int8 are for the CPU with model.compute_dtype float32 or bfloat16 and "
                   "model.batch_invariant: set "
                   "rollout.quantization to none"};
             });
  BindServers(spec);
  spec.Check({"data.train_batch_size", "rollout.n"}, [this]() -> std::vector<std::string> {
    const int64_t samples = config_.data.train_batch_size * config_.rollout.n;
    if (samples <= kMaxBatch) return {};
    return {absl::StrCat("a step has ", samples, " samples; at most ", kMaxBatch, " are possible")};
  });
}

StepShape AnswersRecipe::shape() const {
  return {.rollout = &config_.rollout,
          .validation = &config_.rollout,
          .frozen_copies =
              NeedsReference(config_.actor, config_.algorithm) || Evaluates(config_.trainer, "win_rate") ? 1 : 0,
          .mini_batch_size = MiniBatchPrompts() * config_.rollout.n,
          .pass = config_.actor.pass,
          .scoring = config_.ref,
          .ptx_batch_size = config_.actor.ptx_coef > 0 ? config_.actor.ptx_batch_size : 0,
          .entropy = ActorObjective()->entropy(),
          .optim = config_.actor.optim};
}

std::vector<ModelRole> AnswersRecipe::models() const {
  if (!config_.reward_model.used()) return {};
  return {{.name = "reward_model",
           .section = &config_.reward_model.model,
           .pass = {.micro_batch_size = config_.reward_model.micro_batch_size_per_gpu},
           .score = config_.reward_model.score}};
}

std::optional<data::DataConfig> AnswersRecipe::ptx_data() const {
  if (config_.actor.ptx_coef == 0) return std::nullopt;
  data::DataConfig data = config_.data;
  data.train_files = config_.actor.ptx_files;
  data.path.clear();
  data.train_weights.clear();
  data.val_files.clear();
  data.val_share = 0;
  data.phase_shares = "1";
  data.phase_index = 0;
  data.name = data::kAutoName;
  data.format = data::FormatChoice::kByName;
  data.style = data::StyleChoice::kOfAdapter;
  data.columns = {};
  data.max_length = longest_tokens();
  return data;
}

absl::StatusOr<Plan> AnswersRecipe::MakePlan(const RunParts& parts) {
  const bool keeps_messages = config_.data.keep_messages, plays = config_.environment.used();
  TDOCK_ASSIGN_OR_RETURN(Stages stages, MakeStages(parts));
  Plan plan{
      .columns = ColumnsNamed({kPrompt, kPromptText, kTruth, kSource, kResponses, kResponseMask, kResponseText,
                               kFinished, kRolloutLogProbs, kRewards, kOldLogProbs, kAdvantages}),
      .feed =
          [this, keeps_messages, plays](std::span<const data::EncodedSample> samples) {
            return FeedPrompts(samples, config_.data.columns.keep, keeps_messages, plays ? kInitialPrompt : kPrompt);
          },
      .stages = std::move(stages),
      .evaluations = {},
      .shown = {
          {"reward", "critic/score/mean"},
          {"no difference", config_.filter_groups.enable ? "sampling/equal_share" : "critic/rewards/equal_share", true},
          {"kl", "actor/kl_loss"},
          {"val accuracy", "val/accuracy"}}};
  const auto add = [&plan](const std::vector<ColumnSpec>& more) {
    plan.columns.insert(plan.columns.end(), more.begin(), more.end());
  };
  if (NeedsReference(config_.actor, config_.algorithm)) add(ColumnsNamed({kRefLogProb}));
  if (config_.algorithm.needs_baseline()) add(ColumnsNamed({kRewardBaselines}));
  if (keeps_messages) add(ColumnsNamed({kMessages}));
  if (plays) add(ColumnsNamed({kInitialPrompt, kTrace}));
  add(MoreColumns());
  if (config_.filter_groups.enable) plan.gathering = WhatIsGathered(plan.stages);
  if (!parts.validation.empty()) TDOCK_RETURN_IF_ERROR(AddEvaluations(parts, plan));
  return plan;
}

absl::Status AnswersRecipe::AddEvaluations(const RunParts& parts, Plan& plan) {
  RolloutSection exact = config_.rollout;
  exact.int8_weights = false;  // evaluations are of the policy itself
  const AnswerEvaluationOptions options{.engine = parts.engine(exact),
                                        .max_new_tokens = config_.rollout.max_response_length,
                                        .recorded = config_.trainer.log_val_generations,
                                        .kept = config_.data.columns.keep,
                                        .check_stop = parts.check_stop};
  if (Evaluates(config_.trainer, "reward") && config_.environment.used()) {
    TDOCK_RETURN_IF_ERROR(AddEpisodeEvaluation(parts, options, plan));
  } else if (Evaluates(config_.trainer, "reward")) {
    plan.evaluations.push_back(
        MakeAnswerEvaluation(parts.policy, parts.validation, parts.tokenizer, parts.reward, options));
  }
  if (Evaluates(config_.trainer, "win_rate")) {
    if (!reference_) reference_.emplace(Policy{parts.policy.decoder.Clone()});
    plan.evaluations.push_back(
        MakeWinRateEvaluation(parts.policy, *reference_, parts.validation, parts.tokenizer, *scores_, options));
  }
  return absl::OkStatus();
}

absl::Status AnswersRecipe::AddEpisodeEvaluation(const RunParts& parts, const AnswerEvaluationOptions& options,
                                                 Plan& plan) const {
  const PlayedModel model{parts.tokenizer, parts.chat_template, parts.end_tokens};
  TDOCK_ASSIGN_OR_RETURN(auto environment, MakeRunEnvironment(config_, config_.rollout, model, parts.log));
  AnswerEvaluationOptions with_texts = options;
  with_texts.engine.tokenizer = &parts.tokenizer;
  plan.evaluations.push_back(MakeEpisodeEvaluation(
      parts.policy, parts.validation, std::move(environment),
      EpisodesOf(config_, config_.rollout, Limits(), parts.tokenizer, parts.chat_template, {.temperature = 0}),
      config_.environment.on_error, with_texts));
  return absl::OkStatus();
}

std::shared_ptr<const Objective> AnswersRecipe::ActorObjective() const {
  return MakeActorObjective(ObjectiveOptions(config_.actor, config_.algorithm, config_.rollout));
}

// Whether the rollout's log-probabilities stand for those of the policy before the step. What was sampled ahead of it
// is of older weights, and stands for them only if that is asked for; what servers say never does.
bool AnswersRecipe::BypassesOldLogProbs(const model::Decoder& decoder) const {
  const BypassMode mode = config_.algorithm.bypass_mode;
  const bool equal =
      decoder.batch_invariant() && !config_.rollout.int8_weights && !Streams(config_) && !config_.servers.used();
  return mode == BypassMode::kAlways || (mode == BypassMode::kWhereEqual && equal);
}

// Of partial rollouts, what an answer gets at a time; 0: all.
int64_t AnswersRecipe::TokenBudget() const {
  const int64_t split = config_.async.partial_rollout_max_split;
  return split > 1 ? (config_.rollout.max_response_length + split - 1) / split : 0;
}

absl::Status AnswersRecipe::AddRollout(const RunParts& parts, bool bypass, Stages& stages) const {
  RolloutPuts puts{.log_probs = {kRolloutLogProbs},
                   .weights = parts.served,
                   .in_flight = config_.async.weights == AsyncSection::Weights::kInFlight,
                   .max_rows = config_.rollout.max_num_seqs,
                   .token_budget = TokenBudget(),
                   .min_tokens = config_.rollout.min_response_tokens};
  if (bypass) puts.log_probs.emplace_back(kOldLogProbs);
  if (config_.environment.used()) return AddTurns(parts, puts, stages);
  stages.push_back(MakeRolloutStage(parts.policy, parts.tokenizer, parts.answers(config_, config_.rollout),
                                    config_.rollout.sampling(SeedFor(config_, SeedPurpose::kRollout)), Limits(), puts));
  return absl::OkStatus();
}

absl::Status AnswersRecipe::AddTurns(const RunParts& parts, const RolloutPuts& puts, Stages& stages) const {
  const PlayedModel model{parts.tokenizer, parts.chat_template, parts.end_tokens};
  TDOCK_ASSIGN_OR_RETURN(auto environment, MakeRunEnvironment(config_, config_.rollout, model, parts.log));
  stages.push_back(
      MakeTurnsStage(parts.policy, parts.answers(config_, config_.rollout, &parts.tokenizer), std::move(environment),
                     {.episodes = EpisodesOf(config_, config_.rollout, Limits(), parts.tokenizer, parts.chat_template,
                                             config_.rollout.sampling(SeedFor(config_, SeedPurpose::kRollout))),
                      .on_error = config_.environment.on_error,
                      .environment_seed = SeedFor(config_, SeedPurpose::kEnvironment),
                      .kept = config_.data.columns.keep,
                      .puts = puts,
                      .end_token = parts.end_tokens.front()}));
  return absl::OkStatus();
}

void AnswersRecipe::AddReward(const RunParts& parts, Stages& stages) {
  if (config_.environment.used()) return;  // the rollout has them
  if (!config_.reward_model.used()) {
    stages.push_back(MakeRewardStage(parts.reward, RewardColumns(config_)));
    return;
  }
  RoleModel& model = parts.models.at("reward_model");
  scores_ = std::make_unique<ModelScores>(model.policy.decoder, parts.forward(1.0, model.role.pass), model.role.score,
                                          model.Texts());
  stages.push_back(MakeModelRewardStage(*scores_));
}

LengthLimits AnswersRecipe::Limits() const {
  return {.max_model_len = longest_tokens(), .leaves_last_position = config_.rollout.leave_last_position};
}

void AnswersRecipe::AddBaseline(const RunParts& parts, Stages& stages) const {
  BaselineOptions options{.max_new_tokens = config_.rollout.max_response_length,
                          .limits = Limits(),
                          .more = RewardColumns(config_),
                          .score_clip = config_.algorithm.advantage_options(config_.rollout).score_clip,
                          .overlong = config_.algorithm.overlong_options(config_.rollout)};
  ScoreGreedy score = ScoredBy(parts.reward);
  if (scores_ != nullptr) {
    options.more.clear();
    if (scores_->reads_texts()) options.more.emplace_back(kMessages);
    score = [this](const std::vector<GreedyAnswer>& answers, StageContext& /*context*/) {
      std::vector<AnswerToScore> asked;
      for (const GreedyAnswer& answer : answers) {
        asked.push_back({.prompt = answer.prompt,
                         .response = answer.response,
                         .prompt_text = answer.text.prompt,
                         .messages = answer.text.messages,
                         .response_text = answer.text.response,
                         .finished = answer.text.finished});
      }
      return scores_->Score(asked);
    };
  }
  stages.push_back(MakeBaselineStage(parts.policy, parts.tokenizer,
                                     MakeLocalEngine(parts.policy.decoder, parts.engine(config_.rollout)), score,
                                     std::move(options)));
}

// The stages up to the rewards.
Gathering AnswersRecipe::WhatIsGathered(const Stages& stages) const {
  const auto writes_rewards = [](const std::unique_ptr<Stage>& stage) {
    return absl::c_linear_search(stage->consumer().writes, kRewards);
  };
  Gathering gathering{.stages = static_cast<size_t>(absl::c_find_if(stages, writes_rewards) - stages.begin()) + 1,
                      .groups = config_.data.train_batch_size,
                      .max_rounds = config_.filter_groups.max_num_gen_batches,
                      .score_clip = config_.algorithm.advantage_options(config_.rollout).score_clip};
  if (config_.filter_groups.with_penalty) gathering.overlong = config_.algorithm.overlong_options(config_.rollout);
  return gathering;
}

void AnswersRecipe::AddActor(const RunParts& parts, Stages& stages) const {
  UpdateOptions update =
      parts.update(config_.actor.optim, parts.forward(config_.rollout.temperature, config_.actor.pass));
  update.mini_batch_size = MiniBatchPrompts() * config_.rollout.n;
  update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
  update.epochs = config_.actor.ppo_epochs;
  update.target_kl = config_.actor.target_kl;
  if (parts.ptx != nullptr) {
    update.ptx_coef = config_.actor.ptx_coef;
    update.ptx = GivenAnswers(*parts.ptx, {.batch_size = config_.actor.ptx_batch_size,
                                           .seed = SeedFor(config_, SeedPurpose::kPtx),
                                           .drop_last = false,
                                           .workers = static_cast<int>(config_.data.num_workers),
                                           .skip_bad_records = config_.data.skip_bad_records});
  }
  Adapt(update);
  stages.push_back(MakeUpdateStage(parts.policy, ActorObjective(), update));
}

absl::StatusOr<AnswersRecipe::Stages> AnswersRecipe::MakeStages(const RunParts& parts) {
  const bool bypass = BypassesOldLogProbs(parts.policy.decoder);
  Stages stages;
  TDOCK_RETURN_IF_ERROR(AddRollout(parts, bypass, stages));
  AddReward(parts, stages);
  if (config_.algorithm.needs_baseline()) AddBaseline(parts, stages);
  if (NeedsReference(config_.actor, config_.algorithm)) {
    reference_.emplace(Policy{parts.policy.decoder.Clone()});
    stages.push_back(MakeLogProbStage("ref", kRefLogProb, *reference_, Scoring(parts)));
  }
  if (!bypass) stages.push_back(MakeLogProbStage("old_log_prob", kOldLogProbs, parts.policy, Scoring(parts)));
  AddBeforeAdvantage(parts, stages);
  stages.push_back(MakeAdvantageStage(config_.algorithm.advantage_options(config_.rollout)));
  AddBeforeActor(parts, stages);
  AddActor(parts, stages);
  return stages;
}

}  // namespace tdock::trainer
