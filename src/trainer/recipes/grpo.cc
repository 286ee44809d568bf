// GRPO: reinforcement learning with advantages relative to the other answers to the same prompt.
//
//   feeder ─► rollout ─► reward ─► ref ─► old_log_prob ─► advantage ─► actor
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/config/nearest_values.h"
#include "trainer/loop/feed.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/objectives.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

struct GrpoConfig : RunConfig {
  RolloutSection rollout;
  struct {
    int64_t ppo_mini_batch_size = 32;
    int64_t ppo_micro_batch_size_per_gpu = 0;
    algo::ActorLossOptions loss = {.clip_low = 0.2, .clip_high = 0.2, .kl_coef = 0.001};
    OptimSection optim;
  } actor;
  struct {
    int64_t log_prob_micro_batch_size_per_gpu = 0;
  } ref;
};

void BindActor(config::Spec& spec, GrpoConfig& c) {
  auto& actor = c.actor;
  spec.Int("actor.ppo_mini_batch_size", &actor.ppo_mini_batch_size,
           "Prompts per optimizer step, each with rollout.n samples.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  spec.Int("actor.ppo_micro_batch_size_per_gpu", &actor.ppo_micro_batch_size_per_gpu,
           "Samples in one forward and backward pass; limits memory and does not change results; 0: as many as have "
           "1,024 tokens on the CPU, 16,384 on a GPU.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Float("actor.clip_ratio_low", &actor.loss.clip_low, "The ratio is clipped at 1 minus this.")
      .AtLeast(0)
      .AtMost(1);
  spec.Float("actor.clip_ratio_high", &actor.loss.clip_high, "The ratio is clipped at 1 plus this.").AtLeast(0);
  spec.Float("actor.kl_loss_coef", &actor.loss.kl_coef, "Weight of the KL to the reference model in the loss.")
      .AtLeast(0);
  spec.Choice("actor.kl_loss_type", &actor.loss.kl_type,
              {{"k1", algo::KlEstimator::kK1},
               {"abs", algo::KlEstimator::kAbs},
               {"k2", algo::KlEstimator::kK2},
               {"k3", algo::KlEstimator::kK3}},
              "Estimator of the KL: −x, abs(x), x²/2 or eˣ−x−1, where x is the reference's log-probability minus the "
              "policy's.");
  BindOptim(spec, "actor.optim", actor.optim);
  spec.Check({"actor.ppo_mini_batch_size", "data.train_batch_size"}, [&c]() -> std::vector<std::string> {
    if (c.data.train_batch_size % c.actor.ppo_mini_batch_size == 0) return {};
    const std::string nearest = config::NearestDivisors(c.actor.ppo_mini_batch_size, c.data.train_batch_size);
    return {absl::StrCat("the mini-batch must divide the batch; the nearest that does is ", nearest)};
  });
  spec.Check({"actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", "rollout.n"},
             [&c]() -> std::vector<std::string> {
               const int64_t micro = c.actor.ppo_micro_batch_size_per_gpu;
               const int64_t samples = c.actor.ppo_mini_batch_size * c.rollout.n;
               if (micro == 0 || samples % micro == 0) return {};
               return {absl::StrCat("the micro-batch must divide the ", samples,
                                    " samples of a mini-batch; the nearest that does is ",
                                    config::NearestDivisors(micro, samples))};
             });
}

class GrpoRecipe final : public Recipe {
 public:
  GrpoRecipe() {
    config_.recipe = "grpo";
    config_.actor.optim.lr = 1e-6;
  }

  RunConfig& config() override { return config_; }

  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindRollout(spec, config_.rollout, /*samples=*/true);
    BindActor(spec, config_);
    spec.Int("ref.log_prob_micro_batch_size_per_gpu", &config_.ref.log_prob_micro_batch_size_per_gpu,
             "Samples in one forward pass of the reference and old log-probabilities; 0: as "
             "actor.ppo_micro_batch_size_per_gpu's 0.")
        .AtLeast(0)
        .AtMost(kMaxBatch);
    spec.Check({"data.train_batch_size", "rollout.n"}, [this]() -> std::vector<std::string> {
      const int64_t samples = config_.data.train_batch_size * config_.rollout.n;
      if (samples <= kMaxBatch) return {};
      return {absl::StrCat("a step has ", samples, " samples; at most ", kMaxBatch, " are possible")};
    });
  }

  data::Phase phase() const override { return data::Phase::kPrompt; }
  int64_t samples_per_prompt() const override { return config_.rollout.n; }
  int64_t longest_tokens() const override {
    return config_.data.max_prompt_length + config_.rollout.max_response_length;
  }
  std::string longest_keys() const override { return "data.max_prompt_length + data.max_response_length"; }
  StepShape shape() const override {
    return {.rollout = &config_.rollout,
            .validation = &config_.rollout,
            .frozen_copies = 1,
            .mini_batch_size = config_.actor.ppo_mini_batch_size * config_.rollout.n,
            .micro_batch_size = config_.actor.ppo_micro_batch_size_per_gpu,
            .scoring_micro_batch_size = config_.ref.log_prob_micro_batch_size_per_gpu,
            .wants_entropy = true};
  }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    reference_.emplace(Policy{parts.policy.decoder.Clone()});
    Plan plan{.columns = ColumnsNamed({kPrompt, kPromptText, kTruth, kSource, kResponses, kResponseMask, kResponseText,
                                       kFinished, kRolloutLogProbs, kRewards, kRefLogProb, kOldLogProbs, kAdvantages}),
              .feed =
                  [this](std::span<const data::EncodedSample> samples) {
                    return FeedPrompts(samples, config_.data.columns.keep);
                  },
              .stages = MakeStages(parts),
              .evaluations = {},
              .shown = {{"accuracy", "val/accuracy"}, {"reward", "critic/score/mean"}, {"kl", "actor/kl_loss"}}};
    if (parts.validation.empty()) return plan;
    plan.evaluations.push_back(MakeAnswerEvaluation(parts.policy, parts.validation, parts.tokenizer, parts.reward,
                                                    {.engine = parts.engine(config_.rollout),
                                                     .max_new_tokens = config_.rollout.max_response_length,
                                                     .recorded = config_.trainer.log_val_generations}));
    return plan;
  }

 private:
  std::vector<std::unique_ptr<Stage>> MakeStages(const RunParts& parts) const {
    const double temperature = config_.rollout.temperature;
    const ForwardOptions scoring = parts.forward(temperature, config_.ref.log_prob_micro_batch_size_per_gpu);
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(MakeRolloutStage(parts.policy, parts.tokenizer, parts.engine(config_.rollout),
                                      {.temperature = temperature,
                                       .max_new_tokens = config_.rollout.max_response_length,
                                       .seed = SeedFor(config_, SeedPurpose::kRollout)}));
    stages.push_back(MakeRewardStage(parts.reward));
    stages.push_back(MakeLogProbStage("ref", kRefLogProb, *reference_, scoring));
    stages.push_back(MakeLogProbStage("old_log_prob", kOldLogProbs, parts.policy, scoring));
    stages.push_back(MakeGrpoAdvantageStage());
    stages.push_back(MakeUpdateStage(parts.policy, MakeClippedObjective(config_.actor.loss),
                                     {.forward = parts.forward(temperature, config_.actor.ppo_micro_batch_size_per_gpu),
                                      .optimizer = config_.actor.optim.adamw(),
                                      .lr = config_.actor.optim.lr,
                                      .schedule = config_.actor.optim.schedule(parts.total_steps),
                                      .mini_batch_size = config_.actor.ppo_mini_batch_size * config_.rollout.n,
                                      .seed = SeedFor(config_, SeedPurpose::kMiniBatches),
                                      .max_skipped_steps = config_.actor.optim.max_skipped_steps,
                                      .publish = parts.publish}));
    return stages;
  }

  GrpoConfig config_;
  std::optional<Policy> reference_;
};

}  // namespace

std::unique_ptr<Recipe> MakeGrpoRecipe() { return std::make_unique<GrpoRecipe>(); }

}  // namespace tdock::trainer
