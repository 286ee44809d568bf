// The steps from logits to the distribution that is sampled from, for many rows at the same time, on any device.
// A row's result does not depend on the other rows. Internal to this module.
//
// Shapes: R rows, V vocabulary, K of the most likely tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_counts.h"

namespace tdock::engine {

// The K highest scores of each row, in falling order, of equal ones the lower id first. NaN counts as -infinity.
struct Ranked {
  at::Tensor scores_RK;
  at::Tensor tokens_RK;  // int64
};
Ranked RankTokens(const at::Tensor& scores_RV, int64_t count);

// Scores with those of tokens that top_k, top_p and min_p leave out at -infinity, in this order.
at::Tensor KeepLikely(const at::Tensor& scores_RV, const SamplingParams& params);

// Scores after repetition, frequency and presence penalties; a row has counts[row].
at::Tensor Penalise(const at::Tensor& scores_RV, std::span<const TokenCounts* const> counts,
                    const SamplingParams& params);

// For each row, the token at which the running sum of probabilities passes a uniform number, int64 [R]. The sum's own
// total stands for 1, so that rounding cannot select a token of probability zero.
at::Tensor SampleFromUniform(const at::Tensor& log_probs_RV, const at::Tensor& uniform_R);

}  // namespace tdock::engine
