// The Kullback–Leibler divergence of a policy from a reference: its estimators from samples of the policy, the penalty
// in a reward, and the control of its coefficient.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

// With x = ref − logp (Schulman 2020, "Approximating KL divergence"):
//   k1   −x               unbiased, high variance, may be negative
//   abs  |x|
//   k2   x²/2             biased, low variance (verl's `mse`); its expected gradient is that of the divergence
//   k3   eˣ − x − 1       unbiased, low variance, never negative (verl's `low_var_kl`); its gradient is biased
//   k3+  the value of k3 with the gradient of k2 (verl's `k3+`)
enum class KlEstimator { kK1, kAbs, kK2, kK3, kK3Plus };

// Elementwise over log-probabilities of the sampled tokens, any shape that both share. Differentiable in both arguments
// (abs at 0: with gradient 0). k3 is computed with expm1, which loses fewer digits near x = 0 than exp does, and is not
// clamped: one that overflows is infinite.
at::Tensor KlDivergence(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlEstimator estimator);

struct KlRewardOptions {
  double coef = 0;  // β
  KlEstimator estimator = KlEstimator::kK1;
  double score_clip = std::numeric_limits<double>::infinity();  // scores are clamped to ± this
};

// The rewards of tokens (Ziegler et al. 2019, "Fine-tuning language models from human preferences", eq. 2):
//
//   r_t = −β·KL_t,   and r of a sequence's last token that counts also has its score
//
// scores: [S]. log_probs, ref_log_probs: [N]; undefined if coef is 0. Returns [N], constants, 0 for masked tokens.
// Throws for a score that is not finite, and for a sequence in which no token counts: its score would be lost.
at::Tensor TokenRewards(const at::Tensor& scores, const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                        const Tokens& tokens, const KlRewardOptions& options = {});

struct KlTarget {
  double kl = 0.1;         // that the controller steers to
  double horizon = 10000;  // samples after which an error of 20% has changed the coefficient by 20%; more than a fifth
                           // of those of a step
};

// An adaptive coefficient after a step of `samples` samples (Ziegler et al. 2019, §2.2):
//
//   β·(1 + clip(kl / target − 1, −0.2, 0.2)·samples / horizon)
//
// A fixed coefficient is one that this is not called for. The coefficient is the whole state. Throws unless the target
// and the horizon are positive, `kl` is a number, and the horizon is more than a fifth of the samples: with less, the
// coefficient could become 0 or negative.
double AdaptedKlCoef(double coef, double kl, double samples, const KlTarget& target);

}  // namespace tdock::algo
