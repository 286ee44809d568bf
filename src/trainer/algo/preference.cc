#include "trainer/algo/preference.h"

#include <ATen/ATen.h>

namespace tdock::algo {
namespace {

void CheckPairs(const char* name, const at::Tensor& values, const at::Tensor& like) {
  TORCH_CHECK(values.defined() && like.defined(), name, " are missing");
  TORCH_CHECK(values.dim() == 1 && values.sizes() == like.sizes(), name, " of ", values.sizes(),
              " do not fit pairs of ", like.sizes());
  TORCH_CHECK(at::isFloatingType(values.scalar_type()), name, " must be floating-point numbers, not ",
              values.scalar_type());
  const at::Tensor bad = at::isfinite(values).logical_not().nonzero();
  if (bad.numel() == 0) return;
  const int64_t pair = bad[0][0].item<int64_t>();
  TORCH_CHECK(false, name, " must be finite: that of pair ", pair, " is ", values[pair].item<double>());
}

}  // namespace

at::Tensor PairMean(const at::Tensor& per_pair, double pairs) {
  TORCH_CHECK(pairs > 0, "a mean over ", pairs, " pairs is not defined");
  return per_pair.sum() / pairs;
}

DpoLoss ComputeDpoLoss(const DpoInputs& inputs, const DpoOptions& options) {
  CheckPairs("log-probabilities of chosen answers", inputs.chosen, inputs.chosen);
  CheckPairs("log-probabilities of rejected answers", inputs.rejected, inputs.chosen);
  CheckPairs("reference log-probabilities of chosen answers", inputs.ref_chosen, inputs.chosen);
  CheckPairs("reference log-probabilities of rejected answers", inputs.ref_rejected, inputs.chosen);
  const double beta = options.beta, smoothing = options.label_smoothing;
  TORCH_CHECK(beta > 0, "beta must be positive, not ", beta);
  TORCH_CHECK(smoothing >= 0 && smoothing < (options.kind == DpoKind::kRobust ? 0.5 : 1.0),
              "label smoothing must be at least 0 and below 1 (robust: 0.5), not ", smoothing);
  TORCH_CHECK(options.kind != DpoKind::kIpo || smoothing == 0, "IPO takes no label smoothing, but has ", smoothing);

  const at::Tensor chosen = inputs.chosen - inputs.ref_chosen.detach();
  const at::Tensor rejected = inputs.rejected - inputs.ref_rejected.detach();
  DpoLoss result{
      .per_pair = {}, .chosen_rewards = beta * chosen.detach(), .rejected_rewards = beta * rejected.detach()};
  const at::Tensor delta = chosen - rejected;
  if (options.kind == DpoKind::kIpo) {
    result.per_pair = (delta - 1 / (2 * beta)).square();
    return result;
  }
  const at::Tensor right = -(1 - smoothing) * at::log_sigmoid(beta * delta);
  const at::Tensor wrong = -smoothing * at::log_sigmoid(-beta * delta);
  result.per_pair = options.kind == DpoKind::kRobust ? (right - wrong) / (1 - 2 * smoothing) : right + wrong;
  return result;
}

at::Tensor BradleyTerryLoss(const at::Tensor& chosen, const at::Tensor& rejected, const at::Tensor& margins,
                            const BradleyTerryOptions& options) {
  CheckPairs("scores of chosen answers", chosen, chosen);
  CheckPairs("scores of rejected answers", rejected, chosen);
  at::Tensor difference = chosen - rejected;
  if (margins.defined()) {
    CheckPairs("margins", margins, chosen);
    difference = difference - margins.detach();
  }
  const at::Tensor loss = -at::log_sigmoid(difference);
  if (options.centre_coef == 0) return loss;
  return loss + options.centre_coef * (chosen + rejected).square();
}

at::Tensor LastTokenScores(const at::Tensor& values, const Tokens& tokens) {
  CheckTokens("values", values, tokens);
  return values.index_select(0, LastCounted(tokens));
}

}  // namespace tdock::algo
