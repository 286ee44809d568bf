// How the losses of tokens become one number.
//
// A mini-batch is cut into micro-batches, on one rank or several. Every normaliser is therefore a count over the whole
// mini-batch, and a part's result is its share: the parts' losses and gradients add up to those of the whole, however
// it was cut.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

// With ℓ the loss of a token that counts, S the sequences in which a token counts, |s| the tokens of s that count:
enum class Aggregation {
  kTokenMean,            // Σℓ / Σ|s|             every token weighs the same (DAPO)
  kSeqMeanTokenSum,      // Σℓ / S                every sequence by its sum
  kSeqMeanTokenMean,     // Σ_s (Σℓ / |s|) / S    every sequence weighs the same (GRPO, GSPO)
  kSeqMeanTokenSumNorm,  // Σℓ / (S·norm)         by a constant length (Dr. GRPO)
};

struct Reduction {
  Aggregation how = Aggregation::kTokenMean;
  double norm = 0;  // of kSeqMeanTokenSumNorm: the constant length, such as the most tokens of a response
};

// Of the whole mini-batch, all micro-batches and ranks together.
struct Counts {
  double tokens = 0;     // that count
  double sequences = 0;  // in which at least one token counts
};

// Those of `tokens` alone. `sequences` is 0 where the sequences are not known.
Counts CountsOf(const Tokens& tokens);

// The part's share, a scalar. `values` is [N]. Throws where the normaliser is not positive: a mean over nothing is not
// defined.
at::Tensor Aggregate(const at::Tensor& values, const Tokens& tokens, const Counts& counts,
                     const Reduction& reduction = {});

// Aggregate() with kTokenMean.
at::Tensor TokenMean(const at::Tensor& values, const at::Tensor& mask, double token_count);

// Cross-entropy of the tokens that count: the aggregate of −log p. Prompt tokens are left out by the mask.
at::Tensor SupervisedLoss(const at::Tensor& log_probs, const Tokens& tokens, const Counts& counts,
                          const Reduction& reduction = {});

}  // namespace tdock::algo
