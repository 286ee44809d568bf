#include "trainer/stages/objectives.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

class SupervisedObjective final : public Objective {
 public:
  std::vector<std::string> columns() const override { return {}; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const at::Tensor loss = algo::SupervisedLoss(batch.log_probs, {.mask = batch.mask}, {.tokens = batch.token_count});
    const double tokens = (batch.mask != 0).sum().item<double>();
    metrics.Sum("train/tokens", tokens);
    if (tokens > 0) metrics.Mean("train/loss", loss.item<double>() * batch.token_count / tokens, tokens);
    return loss;
  }
};

class ClippedObjective final : public Objective {
 public:
  explicit ClippedObjective(const algo::ActorLossOptions& options) : options_(options) {
    using Kind = algo::PolicyLossKind;
    algo::CheckActorLossOptions(options);
    const Kind kind = options.kind;
    TORCH_CHECK(kind != Kind::kClipCov && kind != Kind::kKlCov,
                "clip-cov and kl-cov cannot be trained with here: no stage selects their tokens");
    TORCH_CHECK(kind != Kind::kGspo && kind != Kind::kSequenceClip && kind != Kind::kGmpo && kind != Kind::kVespo,
                "a loss of whole sequences (GSPO, sequence clip, GMPO, VESPO) cannot be trained with here: a "
                "micro-batch does not say which sequences its tokens make up");
    TORCH_CHECK(options.reduction.how == algo::Aggregation::kTokenMean,
                "the loss is aggregated by token-mean only here: a micro-batch does not say which sequences its tokens "
                "make up");
    TORCH_CHECK(options.entropy_coef == 0, "entropy_coef must be 0 here, not ", options.entropy_coef,
                ": the entropy is computed without gradients");
  }

  std::vector<std::string> columns() const override { return {kOldLogProbs, kRefLogProb, kAdvantages}; }
  bool wants_entropy() const override { return true; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const TokenBatch::Values& old_log_probs = batch.columns.at(kOldLogProbs);
    const algo::ActorLoss result =
        algo::ComputeActorLoss({.log_probs = batch.log_probs,
                                .old_log_probs = old_log_probs.values,
                                .advantages = batch.columns.at(kAdvantages).values,
                                .ref_log_probs = batch.columns.at(kRefLogProb).values},
                               {.mask = batch.mask}, {.tokens = batch.token_count}, options_);
    at::NoGradGuard no_grad;
    const double tokens = (batch.mask != 0).sum().item<double>();
    if (tokens == 0) return result.loss;
    const auto mean = [&](const char* name, const at::Tensor& values) {
      metrics.Mean(name, algo::TokenMean(values, batch.mask, tokens).item<double>(), tokens);
    };
    mean("actor/pg_loss", result.policy.per_token);
    mean("actor/kl_loss", result.kl);
    mean("actor/entropy", batch.entropy);
    mean("actor/pg_clipfrac", result.policy.clipped.to(at::kFloat));
    mean("actor/ppo_kl", old_log_probs.values - batch.log_probs);
    if (old_log_probs.fresh) {
      metrics.Max("actor/fresh_ratio_deviation", (result.policy.ratio - 1).abs().max().item<double>());
    }
    return result.loss;
  }

 private:
  const algo::ActorLossOptions options_;
};

}  // namespace

std::shared_ptr<const Objective> MakeSupervisedObjective() { return std::make_shared<SupervisedObjective>(); }

std::shared_ptr<const Objective> MakeClippedObjective(const algo::ActorLossOptions& options) {
  return std::make_shared<ClippedObjective>(options);
}

}  // namespace tdock::trainer
