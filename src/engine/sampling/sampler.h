// Chooses the next tokens of many rows, and scores tokens that are given.
//
// Shapes: R rows, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_counts.h"

namespace tdock::engine {

struct TokenLogProb {
  int32_t token;
  float log_prob;
};

// The choices of a batch. log_probs[r] is not finite where the logits or what the steps make of them are not.
struct Choices {
  std::vector<int64_t> tokens;
  std::vector<float> log_probs;
  // Where SamplingParams::top_log_probs asks for them, those of each row, the most likely first, of equal ones the
  // lower id. Fewer where fewer tokens have a probability.
  std::vector<std::vector<TokenLogProb>> top;
};

// Immutable, and so thread-safe. Throws c10::Error if libtorch does.
class Sampler {
 public:
  // What choosing for a row depends on, beside its logits.
  struct Row {
    double uniform;             // the random number, in [0, 1)
    int64_t answer_length;      // tokens so far
    const TokenCounts* counts;  // null unless needs_counts()
    // See TokenConstraint::Allowed(); empty: all tokens are allowed. Before all other steps.
    std::span<const uint64_t> allowed = {};
  };

  // The parameters must have passed CheckSamplingParams() with these tokens and this vocabulary.
  Sampler(const SamplingParams& params, std::span<const int32_t> end_tokens, int64_t vocab_size,
          const at::Device& device);

  bool needs_counts() const { return penalises_; }
  // Whether the temperature divides other logits than the model's.
  bool changes_logits() const { return biases_ || penalises_ || params_.min_new_tokens > 0; }

  // A row's choice does not depend on the other rows. On the CPU, for logits in float32 or bfloat16, log-probabilities
  // are those of kernels::TokenLogProbs(), which training computes as well.
  Choices Choose(const at::Tensor& logits_RV, std::span<const Row> rows) const;

  // The distribution that Choose() samples from, in the logits' dtype or float32; where the temperature is 0, the one
  // whose most likely token it takes.
  at::Tensor FilteredLogProbs(const at::Tensor& logits_RV, std::span<const Row> rows) const;

 private:
  // Whether the distribution that is sampled from is another one than the policy's.
  bool Filters(std::span<const Row> rows) const;
  // What is recorded of a token is its probability under the temperature alone, not the one that it is sampled with.
  bool RecordsPolicy(std::span<const Row> rows) const { return Filters(rows) && !params_.filtered_log_probs; }
  double policy_temperature() const { return greedy_ ? 1.0 : params_.temperature; }
  // Of scores that FilteredLogProbs() is the log-softmax of, where Filters().
  at::Tensor FilteredScores(const at::Tensor& logits_RV, std::span<const Row> rows) const;
  Choices ChooseByKernels(const at::Tensor& logits_RV, std::span<const Row> rows) const;
  Choices ChooseByLibtorch(const at::Tensor& logits_RV, std::span<const Row> rows) const;
  at::Tensor WithoutEnds(const at::Tensor& scores_RV, std::span<const Row> rows) const;

  const SamplingParams params_;
  const bool greedy_;
  const bool biases_;
  const bool penalises_;
  const bool keeps_;     // only likely tokens
  at::Tensor bias_V_;    // logit_bias, and -infinity for tokens that are not allowed; float32
  at::Tensor is_end_V_;  // bool: what is not sampled before min_new_tokens
};

// A given token among those of its row.
struct ScoredToken {
  float log_prob = 0;                  // not finite where the logits are not
  int64_t rank = 1;                    // among all tokens in falling order, of equal ones the lower id first
  std::vector<TokenLogProb> top = {};  // the first ones of this order, without those that have no probability
};

// Scores one token of each row, int64 [R] on the host, under softmax(logits), with at most `top` others. A row's result
// does not depend on the other rows. On the CPU, for logits in float32 or bfloat16, log-probabilities are those of
// kernels::TokenLogProbs().
std::vector<ScoredToken> ScoreTokens(const at::Tensor& logits_RV, const at::Tensor& tokens_R, int64_t top);

}  // namespace tdock::engine
