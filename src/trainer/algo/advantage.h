// Advantages: how much better a sample was than what was expected of its prompt.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::algo {

// Group-relative advantages (Shao et al. 2024, "DeepSeekMath", §4.1.2; verl's `grpo`):
//
//   A_i = (r_i − μ_g) / (σ_g + epsilon),   σ_g with the unbiased (n − 1) divisor
//
// over the samples of i's group g. A group of one sample has μ = 0 and σ = 1; one whose rewards are all equal has
// advantages of exactly 0. A reward that is not finite spoils its own group only.
// rewards: floating-point [N]. groups: int64 [N], any numbers, equal for samples of one prompt. Returns [N] in the
// dtype of the rewards, computed in float64. Throws c10::Error for other shapes and dtypes.
at::Tensor GrpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, double epsilon = 1e-6);

}  // namespace tdock::algo
