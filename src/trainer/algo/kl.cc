#include "trainer/algo/kl.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace tdock::algo {

at::Tensor KlDivergence(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlEstimator estimator) {
  TORCH_CHECK(log_probs.sizes() == ref_log_probs.sizes(), "log-probabilities of ", log_probs.sizes(),
              " cannot be compared with a reference of ", ref_log_probs.sizes());
  const at::Tensor x = ref_log_probs - log_probs;
  switch (estimator) {
    case KlEstimator::kK1:
      return -x;
    case KlEstimator::kAbs:
      return x.abs();
    case KlEstimator::kK2:
      return x.square() / 2;
    case KlEstimator::kK3:
      return x.expm1() - x;
    case KlEstimator::kK3Plus: {
      // The difference is exactly 0: k2 only brings its gradient.
      const at::Tensor k2 = x.square() / 2;
      return (x.expm1() - x).detach() + (k2 - k2.detach());
    }
  }
  TORCH_CHECK(false, "unknown estimator ", static_cast<int>(estimator));
}

at::Tensor TokenRewards(const at::Tensor& scores, const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                        const Tokens& tokens, const KlRewardOptions& options) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(scores.dim() == 1 && scores.size(0) == tokens.sequences, "scores of ", scores.sizes(), " do not fit ",
              tokens.sequences, " samples");
  TORCH_CHECK(at::isFloatingType(scores.scalar_type()), "scores must be floating-point numbers, not ",
              scores.scalar_type());
  const at::Tensor bad = at::isfinite(scores).logical_not().nonzero();
  TORCH_CHECK(bad.numel() == 0, "scores must be finite: that of sample ",
              bad.numel() > 0 ? bad[0][0].item<int64_t>() : 0, " is ",
              bad.numel() > 0 ? scores[bad[0][0].item<int64_t>()].item<double>() : 0);
  const at::Tensor last = LastCounted(tokens);
  at::Tensor rewards = at::zeros(tokens.mask.sizes(), scores.options());
  if (options.coef != 0) {
    CheckTokens("log-probabilities", log_probs, tokens);
    CheckTokens("log-probabilities of the reference", ref_log_probs, tokens);
    const at::Tensor kl = KlDivergence(log_probs, ref_log_probs, options.estimator);
    rewards = Unmasked(-options.coef * kl, tokens.mask).to(scores.scalar_type());
  }
  return rewards.index_add(0, last, scores.clamp(-options.score_clip, options.score_clip));
}

double AdaptedKlCoef(double coef, double kl, double samples, const KlTarget& target) {
  TORCH_CHECK(target.kl > 0 && target.horizon > 0, "the target (", target.kl, ") and horizon (", target.horizon,
              ") of an adaptive KL must be positive");
  TORCH_CHECK(std::isfinite(kl) && samples >= 0, "a KL of ", kl, " over ", samples, " samples cannot adapt anything");
  TORCH_CHECK(0.2 * samples < target.horizon, "a horizon of ", target.horizon, " is too short for steps of ", samples,
              " samples: one could make the coefficient of the KL negative; it must be above ", 0.2 * samples);
  return coef * (1 + std::clamp(kl / target.kl - 1, -0.2, 0.2) * samples / target.horizon);
}

}  // namespace tdock::algo
