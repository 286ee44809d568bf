// The mismatch between the log-probabilities with which tokens were sampled and those that training computes for them,
// and weights that correct for it.
//
// A generation engine and a trainer do not compute the same numbers: other kernels, other precision, older weights.
// With d = training − rollout of a token, sums over the tokens that count, and |s| those of a sequence. Source: Yao et
// al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; verl's rollout correction.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

enum class ImportanceLevel {
  kToken,     // exp(d)
  kSequence,  // exp(Σd), the same for all tokens of a sequence
};

struct ImportanceOptions {
  ImportanceLevel level = ImportanceLevel::kToken;
  double cap = 2.0;  // weights are at most this
};

// Over the units of the level: tokens that count, or sequences in which one does. Weights before they are capped,
// except for the sample size.
struct ImportanceFigures {
  double mean = 0, min = 0, max = 0;
  double fraction_high = 0;          // above cap
  double fraction_low = 0;           // below 1 / cap
  double effective_sample_size = 0;  // (Σw)² / (n·Σw²), of capped weights: 1 if all are equal
};

struct ImportanceWeights {
  at::Tensor weights;  // [N], constants in the dtype of the log-probabilities, 0 for masked tokens
  ImportanceFigures figures;
};

// The capped weights. d, or its sum, is limited to ±20 before exp(). Throws where no token counts, for a cap that is
// not positive, and for log-probabilities that do not fit or are not finite where the mask counts.
ImportanceWeights RolloutWeights(const at::Tensor& training_log_probs, const at::Tensor& rollout_log_probs,
                                 const Tokens& tokens, const ImportanceOptions& options = {});

// The names of verl's rollout_corr/ metrics. A sequence's log-perplexity is −Σ log p / |s|.
struct RolloutMismatch {
  double kl = 0;                                     // the mean of −d: k1 of rollout from training
  double k3_kl = 0;                                  // the mean of eᵈ − d − 1
  double mean_abs_diff = 0, max_abs_diff = 0;        // of |d|
  double training_log_ppl = 0, rollout_log_ppl = 0;  // means over sequences
  double training_ppl = 0, rollout_ppl = 0;          // means over sequences of the exponentials
  double log_ppl_diff = 0, log_ppl_abs_diff = 0;     // training − rollout: means over sequences
  double log_ppl_diff_max = 0, log_ppl_diff_min = 0;
  double ppl_ratio = 0;   // the mean of exp(training − rollout)
  double chi2_token = 0;  // the mean of e²ᵈ, less 1
  double chi2_seq = 0;    // the mean over sequences of exp(2·Σd), less 1
};

// Throws as RolloutWeights().
RolloutMismatch CompareWithRollout(const at::Tensor& training_log_probs, const at::Tensor& rollout_log_probs,
                                   const Tokens& tokens);

}  // namespace tdock::algo
