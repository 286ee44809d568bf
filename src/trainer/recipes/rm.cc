// A reward model: a decoder with a value head learns from preferences which answers are better.
//
//   feeder ─► actor          rows in groups of two: the chosen answer and the rejected one
#include <memory>
#include <string>
#include <vector>

#include "trainer/loop/feed.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/preference_objective.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

enum class LossType { kLastToken, kMean, kEveryToken };

struct RewardModelConfig : RunConfig {
  OptimSection optim;
  PassSection pass;
  LossType loss = LossType::kLastToken;
  double centre_coef = 0;
  bool use_margin = false;
};

class RewardModelRecipe final : public Recipe {
 public:
  RewardModelRecipe() {
    config_.recipe = "rm";
    config_.data.train_batch_size = 32;
    config_.trainer.evaluations = {"pairs"};
  }

  RunConfig& config() override { return config_; }

  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindOptim(spec, "optim", config_, config_.optim);
    BindPass(spec, "data.micro_batch_size_per_gpu", "Pairs in one forward and backward pass",
             "data.max_token_len_per_gpu", config_.pass);
    BindEvaluations(spec, config_.trainer, {"pairs"});
    spec.Choice(
        "loss.type", &config_.loss,
        {{"last_token", LossType::kLastToken}, {"mean", LossType::kMean}, {"every_token", LossType::kEveryToken}},
        "last_token: the value at an answer's last token is its score, and scores are compared (Bradley–Terry); mean: "
        "the mean of the values over the answer is; every_token: values are compared at every token from the first "
        "that differs, as DeepSpeed-Chat does, and the last one is the score.");
    spec.Float("loss.centre_coef", &config_.centre_coef, "Weight of (chosen + rejected)², which keeps scores around 0.")
        .AtLeast(0);
    spec.Bool("loss.use_margin", &config_.use_margin,
              "A pair's label (data.columns.label) says by how much the score of its chosen answer should be higher.");
    spec.Unused(
        {"loss.centre_coef", "loss.use_margin"}, [this] { return config_.loss == LossType::kEveryToken; },
        "every_token compares no scores");
  }

  data::Phase phase() const override { return data::Phase::kReward; }
  int64_t samples_per_prompt() const override { return 2; }
  model::Head head() const override { return model::Head::kValue; }
  int64_t longest_tokens() const override { return config_.data.max_length; }
  std::string longest_keys() const override { return "data.max_length"; }
  StepShape shape() const override {
    return {.pass = config_.pass.of_pairs(), .scoring = config_.pass.of_pairs(), .optim = config_.optim};
  }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    const ForwardOptions forward = parts.forward(1.0, config_.pass.of_pairs());
    PairColumns columns{.margin = config_.use_margin};
    if (config_.loss == LossType::kEveryToken) {
      columns.pad_with = parts.tokenizer.pad_id().value_or(parts.tokenizer.eos_id().value_or(0));
    }
    Plan plan{.columns = ColumnsNamed({kPrompt, kResponses, kResponseMask}),
              .feed = [columns](std::span<const data::EncodedSample> samples) { return FeedPairs(samples, columns); },
              .feeds_groups = true,
              .stages = {},
              .evaluations = {},
              .shown = {{"loss", "train/loss"},
                        {"accuracy", "train/accuracy"},
                        {"margin", "train/margin"},
                        {"val accuracy", "val/accuracy"}}};
    if (config_.use_margin) plan.columns.push_back(ColumnsNamed({kMargin}).front());
    if (columns.pad_with) plan.columns.push_back(ColumnsNamed({kComparedFrom}).front());
    UpdateOptions update = parts.update(config_.optim, forward);
    update.name = "train";
    update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
    const std::shared_ptr<const Objective> objective = MakeRewardObjective(options());
    plan.stages.push_back(MakeUpdateStage(parts.policy, objective, update));
    if (parts.validation.empty() || !Evaluates(config_.trainer, "pairs")) return plan;
    plan.evaluations.push_back(MakePairEvaluation(
        parts.validation, columns, objective,
        [&policy = parts.policy, forward, score = options().score](std::span<const Sequence> answers,
                                                                   TokenBatch& batch) {
          batch.values = Values(policy.decoder, answers, forward, Scored::kValuesAt).to(at::kCPU, at::kDouble);
          return AnswerScores(batch.values, batch.tokens, score);
        }));
    return plan;
  }

 private:
  RewardObjectiveOptions options() const {
    using Loss = RewardObjectiveOptions::Loss;
    return {.loss = config_.loss == LossType::kEveryToken ? Loss::kEveryToken : Loss::kBradleyTerry,
            .score = config_.loss == LossType::kMean ? AnswerScore::kMean : AnswerScore::kLastToken,
            .bradley_terry = {.centre_coef = config_.centre_coef},
            .margins = config_.use_margin};
  }

  RewardModelConfig config_;
};

}  // namespace

std::unique_ptr<Recipe> MakeRewardModelRecipe() { return std::make_unique<RewardModelRecipe>(); }

}  // namespace tdock::trainer
