#include "trainer/stages/actor_objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// Columns of Prepare().
constexpr char kRolloutWeights[] = "rollout_weights";
constexpr char kSelected[] = "selected";

void ReportMismatch(const algo::RolloutMismatch& mismatch, StepMetrics& metrics) {
  const std::pair<const char*, double> means[] = {
      {"kl", mismatch.kl},
      {"k3_kl", mismatch.k3_kl},
      {"mean_abs_diff", mismatch.mean_abs_diff},
      {"training_log_ppl", mismatch.training_log_ppl},
      {"rollout_log_ppl", mismatch.rollout_log_ppl},
      {"training_ppl", mismatch.training_ppl},
      {"rollout_ppl", mismatch.rollout_ppl},
      {"log_ppl_diff", mismatch.log_ppl_diff},
      {"log_ppl_abs_diff", mismatch.log_ppl_abs_diff},
      {"ppl_ratio", mismatch.ppl_ratio},
      {"chi2_token", mismatch.chi2_token},
      {"chi2_seq", mismatch.chi2_seq},
  };
  for (const auto& [name, value] : means) metrics.Mean(absl::StrCat("rollout_corr/", name), value);
  metrics.Max("rollout_corr/max_abs_diff", mismatch.max_abs_diff);
  metrics.Max("rollout_corr/log_ppl_diff_max", mismatch.log_ppl_diff_max);
  metrics.Min("rollout_corr/log_ppl_diff_min", mismatch.log_ppl_diff_min);
}

void ReportWeights(const algo::ImportanceFigures& figures, StepMetrics& metrics) {
  metrics.Mean("rollout_corr/rollout_is_mean", figures.mean);
  metrics.Min("rollout_corr/rollout_is_min", figures.min);
  metrics.Max("rollout_corr/rollout_is_max", figures.max);
  metrics.Mean("rollout_corr/rollout_is_ratio_fraction_high", figures.fraction_high);
  metrics.Mean("rollout_corr/rollout_is_ratio_fraction_low", figures.fraction_low);
  metrics.Mean("rollout_corr/rollout_is_eff_sample_size", figures.effective_sample_size);
}

class ActorObjective final : public Objective {
 public:
  explicit ActorObjective(const ActorObjectiveOptions& options) : options_(options) {
    algo::CheckActorLossOptions(options.loss);
  }

  std::vector<std::string> columns() const override {
    std::vector<std::string> columns = {kOldLogProbs, kAdvantages, kRolloutLogProbs};
    if (options_.loss.kl_coef != 0) columns.push_back(kRefLogProb);
    return columns;
  }

  Entropy entropy() const override {
    return options_.loss.entropy_coef != 0 ? Entropy::kWithGradients : Entropy::kWithoutGradients;
  }

  void Prepare(TokenBatch& batch, uint64_t seed, StepMetrics& metrics) const override {
    const at::Tensor &old = batch.columns.at(kOldLogProbs).values, &rollout = batch.columns.at(kRolloutLogProbs).values;
    const at::Tensor& advantages = batch.columns.at(kAdvantages).values;
    ReportMismatch(algo::CompareWithRollout(old, rollout, batch.tokens), metrics);
    if (options_.rollout_weights.has_value()) {
      const algo::ImportanceWeights weights =
          algo::RolloutWeights(old, rollout, batch.tokens, *options_.rollout_weights);
      ReportWeights(weights.figures, metrics);
      batch.columns[kRolloutWeights].values = weights.weights;
    }
    if (options_.loss.kind == algo::PolicyLossKind::kClipCov) {
      batch.columns[kSelected].values = algo::RandomCovariance(old, advantages, batch.tokens, seed, options_.clip_cov);
    } else if (options_.loss.kind == algo::PolicyLossKind::kKlCov) {
      batch.columns[kSelected].values =
          algo::LargestCovariance(old, advantages, batch.tokens, options_.kl_cov_fraction);
    }
  }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const auto column = [&](const char* name) {
      const auto found = batch.columns.find(name);
      return found == batch.columns.end() ? at::Tensor() : found->second.values;
    };
    const algo::ActorLoss result =
        algo::ComputeActorLoss({.log_probs = batch.log_probs,
                                .old_log_probs = column(kOldLogProbs),
                                .advantages = column(kAdvantages),
                                .ref_log_probs = column(kRefLogProb),
                                .entropy = batch.entropy,
                                .rollout_weights = column(kRolloutWeights),
                                .rollout_level = options_.rollout_weights.value_or(algo::ImportanceOptions()).level,
                                .selected = column(kSelected)},
                               batch.tokens, batch.counts, options_.loss);
    Report(result, batch, metrics);
    return result.loss;
  }

 private:
  static void Report(const algo::ActorLoss& result, const TokenBatch& batch, StepMetrics& metrics) {
    at::NoGradGuard no_grad;
    const double tokens = algo::CountsOf(batch.tokens).tokens;
    if (tokens == 0) return;
    const auto mean = [&](const char* name, const at::Tensor& values) {
      metrics.Mean(name, algo::TokenMean(values, batch.tokens.mask, tokens).item<double>(), tokens);
    };
    const TokenBatch::Values& old_log_probs = batch.columns.at(kOldLogProbs);
    mean("actor/pg_loss", result.policy.per_token);
    if (result.kl.defined()) mean("actor/kl_loss", result.kl);
    mean("actor/entropy", batch.entropy);
    mean("actor/pg_clipfrac", result.policy.clipped.to(at::kFloat));
    mean("actor/pg_clipfrac_lower", result.policy.dual.to(at::kFloat));
    mean("actor/ppo_kl", old_log_probs.values - batch.log_probs);
    if (old_log_probs.fresh) {
      const at::Tensor log_ratio = algo::Unmasked(batch.log_probs - old_log_probs.values, batch.tokens.mask);
      metrics.Max("actor/fresh_ratio_deviation", log_ratio.expm1().abs().max().item<double>());
    }
  }

  const ActorObjectiveOptions options_;
};

}  // namespace

std::shared_ptr<const Objective> MakeActorObjective(const ActorObjectiveOptions& options) {
  return std::make_shared<ActorObjective>(options);
}

}  // namespace tdock::trainer
