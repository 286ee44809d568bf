#include "trainer/algo/aggregate.h"

#include <ATen/ATen.h>

namespace tdock::algo {

Counts CountsOf(const Tokens& tokens) {
  Counts counts{.tokens = (tokens.mask != 0).sum().item<double>()};
  if (tokens.sequence.defined()) counts.sequences = (CountBySequence(tokens) > 0).sum().item<double>();
  return counts;
}

at::Tensor Aggregate(const at::Tensor& values, const Tokens& tokens, const Counts& counts, const Reduction& reduction) {
  if (reduction.how == Aggregation::kTokenMean) return TokenMean(values, tokens.mask, counts.tokens);
  TORCH_CHECK(counts.sequences > 0, "a mean over ", counts.sequences, " sequences is not defined");
  switch (reduction.how) {
    case Aggregation::kSeqMeanTokenSum:
      return Unmasked(values, tokens.mask).sum() / counts.sequences;
    case Aggregation::kSeqMeanTokenMean:
      return MeanBySequence(values, tokens).sum() / counts.sequences;
    case Aggregation::kSeqMeanTokenSumNorm:
      TORCH_CHECK(reduction.norm > 0, "seq-mean-token-sum-norm needs a length to divide by, not ", reduction.norm);
      return Unmasked(values, tokens.mask).sum() / (counts.sequences * reduction.norm);
    case Aggregation::kTokenMean:
      break;
  }
  TORCH_CHECK(false, "unknown aggregation ", static_cast<int>(reduction.how));
}

at::Tensor TokenMean(const at::Tensor& values, const at::Tensor& mask, double token_count) {
  TORCH_CHECK(token_count > 0, "a mean over ", token_count, " tokens is not defined");
  return Unmasked(values, mask).sum() / token_count;
}

at::Tensor SupervisedLoss(const at::Tensor& log_probs, const Tokens& tokens, const Counts& counts,
                          const Reduction& reduction) {
  CheckTokens("log-probabilities", log_probs, tokens);
  return Aggregate(-log_probs, tokens, counts, reduction);
}

}  // namespace tdock::algo
