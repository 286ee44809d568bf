#include "trainer/algo/importance.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tdock::algo {
namespace {

at::Tensor LimitedExp(const at::Tensor& x) { return x.clamp(-20.0, 20.0).exp(); }

// In float64, 0 for masked tokens.
struct LogProbPair {
  at::Tensor training, rollout, difference;
};

LogProbPair PairOf(const at::Tensor& training, const at::Tensor& rollout, const Tokens& tokens) {
  CheckTokens("log-probabilities of training", training, tokens);
  CheckTokens("log-probabilities of the rollout", rollout, tokens);
  TORCH_CHECK((tokens.mask != 0).any().item<bool>(), "no token counts, so there is nothing to compare");
  const at::Tensor t = Unmasked(training.detach(), tokens.mask).to(at::kDouble);
  const at::Tensor r = Unmasked(rollout.detach(), tokens.mask).to(at::kDouble);
  return {t, r, t - r};
}

at::Tensor OfTokens(const at::Tensor& values, const Tokens& tokens) { return values.masked_select(tokens.mask != 0); }

at::Tensor OfSequences(const at::Tensor& values, const Tokens& tokens) {
  return values.masked_select(CountBySequence(tokens) > 0);
}

double Number(const at::Tensor& scalar) { return scalar.item<double>(); }
double Fraction(const at::Tensor& condition) { return Number(condition.to(at::kDouble).mean()); }

}  // namespace

ImportanceWeights RolloutWeights(const at::Tensor& training_log_probs, const at::Tensor& rollout_log_probs,
                                 const Tokens& tokens, const ImportanceOptions& options) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(options.cap > 0, "the cap of importance weights must be positive, not ", options.cap);
  const at::Tensor difference = PairOf(training_log_probs, rollout_log_probs, tokens).difference;
  const bool by_token = options.level == ImportanceLevel::kToken;
  const at::Tensor units = LimitedExp(by_token ? difference : SumBySequence(difference, tokens));
  const at::Tensor w = by_token ? OfTokens(units, tokens) : OfSequences(units, tokens);
  const at::Tensor capped = w.clamp_max(options.cap);
  const at::Tensor all = (by_token ? units : Spread(units, tokens)).clamp_max(options.cap);
  return {Unmasked(all, tokens.mask).to(training_log_probs.scalar_type()),
          {.mean = Number(w.mean()),
           .min = Number(w.min()),
           .max = Number(w.max()),
           .fraction_high = Fraction(w > options.cap),
           .fraction_low = Fraction(w < 1 / options.cap),
           .effective_sample_size = Number(capped.mean().square() / capped.square().mean())}};
}

RolloutMismatch CompareWithRollout(const at::Tensor& training_log_probs, const at::Tensor& rollout_log_probs,
                                   const Tokens& tokens) {
  at::NoGradGuard no_grad;
  const LogProbPair pair = PairOf(training_log_probs, rollout_log_probs, tokens);
  const at::Tensor d = OfTokens(pair.difference, tokens);
  const at::Tensor training = OfSequences(-MeanBySequence(pair.training, tokens), tokens);
  const at::Tensor rollout = OfSequences(-MeanBySequence(pair.rollout, tokens), tokens);
  const at::Tensor ppl_diff = training - rollout;
  const at::Tensor sums = OfSequences(SumBySequence(pair.difference, tokens), tokens);
  return {.kl = Number(-d.mean()),
          .k3_kl = Number((d.expm1() - d).mean()),
          .mean_abs_diff = Number(d.abs().mean()),
          .max_abs_diff = Number(d.abs().max()),
          .training_log_ppl = Number(training.mean()),
          .rollout_log_ppl = Number(rollout.mean()),
          .training_ppl = Number(training.exp().mean()),
          .rollout_ppl = Number(rollout.exp().mean()),
          .log_ppl_diff = Number(ppl_diff.mean()),
          .log_ppl_abs_diff = Number(ppl_diff.abs().mean()),
          .log_ppl_diff_max = Number(ppl_diff.max()),
          .log_ppl_diff_min = Number(ppl_diff.min()),
          .ppl_ratio = Number(ppl_diff.exp().mean()),
          .chi2_token = Number(LimitedExp(d).square().mean() - 1),
          .chi2_seq = Number(LimitedExp(sums).square().mean() - 1)};
}

}  // namespace tdock::algo
