// DPO: the policy learns from preferences, pairs of answers to the same prompt, without rewards or answers of its own.
//
//   feeder ─► ref ─► actor          rows in groups of two: the chosen answer and the rejected one
#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/loop/feed.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/preference_objective.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

struct DpoConfig : RunConfig {
  OptimSection optim;
  PassSection pass, ref;
  DpoObjectiveOptions dpo;
};

class DpoRecipe final : public Recipe {
 public:
  DpoRecipe() {
    config_.recipe = "dpo";
    config_.data.train_batch_size = 32;
    config_.trainer.evaluations = {"pairs"};
    config_.optim.lr = 1e-6;
  }

  RunConfig& config() override { return config_; }

  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindOptim(spec, "optim", config_, config_.optim);
    BindPass(spec, "data.micro_batch_size_per_gpu", "Pairs in one forward and backward pass",
             "data.max_token_len_per_gpu", config_.pass);
    BindEvaluations(spec, config_.trainer, {"pairs", "perplexity"});
    BindPass(spec, "ref.log_prob_micro_batch_size_per_gpu", "Answers in one forward pass of the reference",
             "ref.log_prob_max_token_len_per_gpu", config_.ref);
    spec.Float("dpo.beta", &config_.dpo.loss.beta,
               "How strongly the policy is held to the reference: an implicit reward is this times the log-probability "
               "that the policy has gained on it.")
        .MoreThan(0);
    spec.Choice(
        "dpo.loss_type", &config_.dpo.loss.kind,
        {{"sigmoid", algo::DpoKind::kSigmoid}, {"robust", algo::DpoKind::kRobust}, {"ipo", algo::DpoKind::kIpo}},
        "The loss of a pair; docs/algorithms.md has the formulas.");
    spec.Float("dpo.label_smoothing", &config_.dpo.loss.label_smoothing, "The chance that a preference is wrong.")
        .AtLeast(0)
        .LessThan(0.5);
    spec.Float("dpo.nll_coef", &config_.dpo.nll_coef,
               "Weight of the chosen answer's negative log-likelihood, a mean over its tokens, beside the loss of the "
               "pair, which alone may make both answers less likely. 1 is usual for reasoning.")
        .AtLeast(0);
    spec.Bool("dpo.average_log_prob", &config_.dpo.average,
              "Compare means of log-probabilities over the tokens of an answer instead of sums.");
    spec.Check({"dpo.loss_type", "dpo.label_smoothing"}, [this]() -> std::vector<std::string> {
      if (config_.dpo.loss.kind != algo::DpoKind::kIpo || config_.dpo.loss.label_smoothing == 0) return {};
      return {"ipo takes no label smoothing: remove it"};
    });
  }

  data::Phase phase() const override { return data::Phase::kReward; }
  int64_t samples_per_prompt() const override { return 2; }
  int64_t longest_tokens() const override { return config_.data.max_length; }
  std::string longest_keys() const override { return "data.max_length"; }
  StepShape shape() const override {
    return {.frozen_copies = 1, .pass = config_.pass.of_pairs(), .scoring = config_.ref, .optim = config_.optim};
  }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    const ForwardOptions forward = parts.forward(1.0, config_.pass.of_pairs());
    const ForwardOptions scoring = parts.forward(1.0, config_.ref);
    reference_.emplace(Policy{parts.policy.decoder.Clone()});
    Plan plan{.columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kRefLogProb}),
              .feed = [](std::span<const data::EncodedSample> samples) { return FeedPairs(samples); },
              .feeds_groups = true,
              .stages = {},
              .evaluations = {},
              .shown = {{"loss", "train/loss"},
                        {"accuracy", "train/accuracy"},
                        {"margin", "train/margin"},
                        {"val accuracy", "val/accuracy"}}};
    plan.stages.push_back(MakeLogProbStage("ref", kRefLogProb, *reference_, scoring));
    UpdateOptions update = parts.update(config_.optim, forward);
    update.name = "train";
    update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
    const std::shared_ptr<const Objective> objective = MakeDpoObjective(config_.dpo);
    plan.stages.push_back(MakeUpdateStage(parts.policy, objective, update));
    if (parts.validation.empty()) return plan;
    // Of the chosen answers.
    if (Evaluates(config_.trainer, "perplexity")) {
      plan.evaluations.push_back(MakeLossEvaluation(parts.policy, parts.validation, scoring));
    }
    if (!Evaluates(config_.trainer, "pairs")) return plan;
    plan.evaluations.push_back(MakePairEvaluation(
        parts.validation, PairColumns(), objective,
        [this, &policy = parts.policy, scoring](std::span<const Sequence> answers, TokenBatch& batch) {
          batch.log_probs = LogProbs(policy.decoder, answers, scoring).to(at::kCPU, at::kDouble);
          at::Tensor& ref_log_probs = batch.columns[kRefLogProb].values;
          ref_log_probs = LogProbs(reference_->decoder, answers, scoring).to(at::kCPU, at::kDouble);
          const at::Tensor gained = batch.log_probs - ref_log_probs;
          return config_.dpo.loss.beta * (config_.dpo.average ? algo::MeanBySequence(gained, batch.tokens)
                                                              : algo::SumBySequence(gained, batch.tokens));
        }));
    return plan;
  }

 private:
  DpoConfig config_;
  std::optional<Policy> reference_;
};

}  // namespace

std::unique_ptr<Recipe> MakeDpoRecipe() { return std::make_unique<DpoRecipe>(); }

}  // namespace tdock::trainer
