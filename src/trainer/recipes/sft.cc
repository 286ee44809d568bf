// Supervised fine-tuning: the policy learns the replies of conversations, or the answers to prompts.
//
//   feeder ─► actor
#include <memory>

#include "trainer/loop/feed.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/supervised_objective.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

struct SftConfig : RunConfig {
  OptimSection optim;
  RolloutSection rollout;
  PassSection pass;
};

class SftRecipe final : public Recipe {
 public:
  SftRecipe() {
    config_.recipe = "sft";
    config_.data.train_batch_size = 32;
    config_.trainer.evaluations = {"perplexity"};
  }

  RunConfig& config() override { return config_; }

  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindOptim(spec, "optim", config_, config_.optim);
    BindRollout(spec, config_.rollout, /*samples=*/false);
    BindPass(spec, "data.micro_batch_size_per_gpu", "Samples in one forward and backward pass",
             "data.max_token_len_per_gpu", config_.pass);
    BindEvaluations(spec, config_.trainer, {"perplexity", "reward"});
  }

  data::Phase phase() const override { return data::Phase::kSft; }
  int64_t longest_tokens() const override { return config_.data.max_length; }
  std::string longest_keys() const override { return "data.max_length"; }
  StepShape shape() const override {
    return {.validation = Evaluates(config_.trainer, "reward") ? &config_.rollout : nullptr,
            .pass = config_.pass,
            .scoring = config_.pass,
            .optim = config_.optim};
  }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    const ForwardOptions forward = parts.forward(1.0, config_.pass);
    Plan plan{.columns = ColumnsNamed({kPrompt, kResponses, kResponseMask}),
              .feed = FeedAnswers,
              .stages = {},
              .evaluations = {},
              .shown = {{"loss", "train/loss"}, {"val loss", "val/loss"}, {"val accuracy", "val/accuracy"}}};
    UpdateOptions update = parts.update(config_.optim, forward);
    update.name = "train";
    update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
    plan.stages.push_back(MakeUpdateStage(parts.policy, MakeSupervisedObjective(), update));
    if (parts.validation.empty()) return plan;
    if (Evaluates(config_.trainer, "perplexity")) {
      plan.evaluations.push_back(MakeLossEvaluation(parts.policy, parts.validation, forward));
    }
    if (Evaluates(config_.trainer, "reward")) {
      plan.evaluations.push_back(MakeAnswerEvaluation(parts.policy, parts.validation, parts.tokenizer, parts.reward,
                                                      {.engine = parts.engine(config_.rollout),
                                                       .max_new_tokens = config_.rollout.max_response_length,
                                                       .recorded = config_.trainer.log_val_generations,
                                                       .kept = config_.data.columns.keep,
                                                       .check_stop = parts.check_stop}));
    }
    return plan;
  }

 private:
  SftConfig config_;
};

}  // namespace

std::unique_ptr<Recipe> MakeSftRecipe() { return std::make_unique<SftRecipe>(); }

}  // namespace tdock::trainer
