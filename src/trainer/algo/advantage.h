// Advantages: how much better a sample, or a token of it, was than what was expected.
//
// Of samples: rewards are floating-point [S], one number for each sample, and groups int64 [S], any numbers, equal for
// samples of one prompt. The result is [S]; Spread() gives it to the tokens. μ, σ and n are those of a sample's group,
// σ with the unbiased (n − 1) divisor. A group of one sample has no others to compare it with: its μ is 0 and its σ
// is 1. A group whose rewards are all equal has advantages of exactly 0. A reward that is not finite makes
// all advantages of its own group NaN, and none of another's (GPG's α counts it). The pass over all samples of a step
// must be one call: a group that is cut has other means.
//
// Of tokens: [N], 0 for masked ones, which are passed over in time: what follows a tool's output is discounted as if it
// followed at once.
//
// All are constants, without gradients, in the dtype of the rewards, computed in float64. Other shapes and dtypes, and
// numbers of tokens that are not finite, are errors.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

struct GrpoOptions {
  bool divide_by_deviation = true;  // false: r − μ (Liu et al. 2025, "Understanding R1-Zero-like training": Dr. GRPO)
  double epsilon = 1e-6;
};

// (r − μ) / (σ + epsilon) (Shao et al. 2024, "DeepSeekMath", §4.1.2; verl's `grpo`).
at::Tensor GrpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, const GrpoOptions& options = {});

// Pass@k: the best sample of a group gets r₁ − r₂, its lead over the second, the others 0; divided by σ + epsilon if
// asked (Tang et al. 2025, arXiv:2503.19595; verl's `grpo_passk`, which divides by default). A group of one has no
// second sample, and is an error.
at::Tensor PassAtKAdvantages(const at::Tensor& rewards, const at::Tensor& groups,
                             const GrpoOptions& options = {.divide_by_deviation = false});

// Leave one out: r less the mean of the others, n/(n − 1)·(r − μ) (Ahmadian et al. 2024, "Back to basics"; verl's
// `rloo`, TRL). A group of one keeps its reward; verl's `rloo_vectorized` and TRL give it 0.
at::Tensor RlooAdvantages(const at::Tensor& rewards, const at::Tensor& groups);

// r − Σℓr/Σℓ, with ℓ the number of tokens of each sample that count (Hao et al. 2025, "On-policy RL with optimal reward
// baseline", arXiv:2505.23585; verl's `opo`). lengths: [S]. Throws for a group without any token.
at::Tensor OpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, const at::Tensor& lengths);

// The samples that α is counted over.
enum class GpgScale {
  kGroupsThatDiffer,  // of groups whose rewards are not all equal: those with a gradient (the paper's B − M)
  kRewardsNotZero,    // with a reward other than 0 (verl's `gpg`)
};

// α·(r − μ), α = samples / samples counted (Chu et al. 2025, "GPG", arXiv:2504.02546). None counted: α = samples, as in
// verl.
at::Tensor GpgAdvantages(const at::Tensor& rewards, const at::Tensor& groups,
                         GpgScale scale = GpgScale::kGroupsThatDiffer);

// Whiten(r − μ) for each token, [N] (Hu et al. 2025, "REINFORCE++"; verl's `reinforce_plus_plus_baseline`).
at::Tensor ReinforcePlusPlusBaselineAdvantages(const at::Tensor& rewards, const at::Tensor& groups,
                                               const Tokens& tokens);

struct TokenAdvantages {
  at::Tensor advantages;  // [N]
  at::Tensor returns;     // [N]
};

// The discounted sum of the rewards from each token on: G_t = r_t + γ·G_{t+1}. token_rewards: [N].
at::Tensor ReturnsToGo(const at::Tensor& token_rewards, const Tokens& tokens, double gamma = 1.0);

// Advantages are Whiten(returns to go) (Hu et al. 2025; verl's `reinforce_plus_plus`).
TokenAdvantages ReinforcePlusPlusAdvantages(const at::Tensor& token_rewards, const Tokens& tokens, double gamma = 1.0);

// Advantages are the returns to go less the reward of a greedy answer to the same prompt, baselines [S] (Li et al.
// 2023, "ReMax", algorithm 1; verl's `remax`).
TokenAdvantages RemaxAdvantages(const at::Tensor& token_rewards, const at::Tensor& baselines, const Tokens& tokens);

struct GaeOptions {
  double gamma = 1.0;
  double lambda = 0.95;
  bool whiten = false;  // the advantages, not the returns; verl always does
};

// Generalized advantage estimation (Schulman et al. 2016, eq. 16), with V = 0 behind the last token of a sequence:
//
//   δ_t = r_t + γ·V_{t+1} − V_t,   A_t = δ_t + γλ·A_{t+1},   returns A + V
//
// token_rewards and values are [N].
TokenAdvantages GaeAdvantages(const at::Tensor& token_rewards, const at::Tensor& values, const Tokens& tokens,
                              const GaeOptions& options = {});

}  // namespace tdock::algo
