// The tokens whose log-probability and advantage vary together most: those that make a policy's entropy fall.
// Source: Cui et al. 2025, "The entropy mechanism of reinforcement learning for reasoning language models",
// arXiv:2505.22617. verl's `clip_cov` and `kl_cov`.
//
// Both choose by the covariance of a token, (A − mean A)·(log p − mean log p), means over the tokens that count. The
// choice is to be made once over a whole mini-batch, with the old log-probabilities, before it is cut: chosen in each
// micro-batch, as verl does, it depends on the cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

// The fraction of the tokens that count, at least one of them, with the largest covariance: for kl-cov. bool [N].
at::Tensor LargestCovariance(const at::Tensor& log_probs, const at::Tensor& advantages, const Tokens& tokens,
                             double fraction = 0.0002);

struct CovarianceRange {
  double low = 1.0;   // above this
  double high = 5.0;  // and below this
  double fraction = 0.0002;
};

// As many of the tokens whose covariance is in the range as are `fraction` of those that count, at least one, chosen at
// random by the seed; all, if there are fewer: for clip-cov. bool [N].
at::Tensor RandomCovariance(const at::Tensor& log_probs, const at::Tensor& advantages, const Tokens& tokens,
                            uint64_t seed, const CovarianceRange& range = {});

}  // namespace tdock::algo
