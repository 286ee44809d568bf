// Estimators of the Kullback–Leibler divergence of a policy from a reference, from samples of the policy.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::algo {

// With x = ref − logp (Schulman 2020, "Approximating KL divergence"):
//   k1   −x               unbiased, high variance, may be negative
//   abs  |x|
//   k2   x²/2             biased, low variance (verl's `mse`)
//   k3   eˣ − x − 1       unbiased, low variance, never negative (verl's `low_var_kl`)
enum class KlEstimator { kK1, kAbs, kK2, kK3 };

// Elementwise over log-probabilities of the sampled tokens, any shape that both share. Differentiable in both arguments
// (abs at 0: with gradient 0). k3 is computed with expm1, which loses fewer digits near x = 0 than exp does.
at::Tensor KlDivergence(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlEstimator estimator);

}  // namespace tdock::algo
