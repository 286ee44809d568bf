// Log-probabilities of tokens from logits, and sampling, on the CPU: the same for a row whatever the other rows are and
// on any number of threads. Both who samples and who trains call these, so that they agree on every bit.
//
// Shapes: N rows, V vocabulary. logits: [N, V], float32 or bfloat16; computed in float32, with exact products by 1 /
// temperature, which is rounded to float32; temperature > 0. Thread-safe; they throw c10::Error for other devices,
// dtypes and shapes. No gradients flow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tdock::kernels {

// Whether these functions take logits of this device and dtype.
bool TakesLogits(const at::Tensor& logits);

struct TokenScores {
  at::Tensor log_probs;  // float32 [N]
  at::Tensor sums;       // float32 [N]: log Σ exp(logits / temperature)
};

// log softmax(logits / temperature) at targets, int64 [N].
TokenScores TokenLogProbs(const at::Tensor& logits, const at::Tensor& targets, double temperature);

// log softmax(logits / temperature), float32 [N, V]: at a target it equals TokenLogProbs().
at::Tensor LogSoftmax(const at::Tensor& logits, double temperature);

struct LikelyToken {
  int64_t token = 0;
  float log_prob = 0;
};
// A target among the tokens of its row. Ranks are by log-probability, from 1; of equal ones the lower token goes first.
struct RankedTarget {
  float log_prob = 0;  // as by TokenLogProbs(); not finite where the row has no distribution
  int64_t rank = 1;
  std::vector<LikelyToken> likeliest = {};  // those of the ranks 1, 2, …, without tokens of probability zero
};
// The targets, int64 [N], at temperature 1, with at most `count` of the likeliest tokens of each row.
std::vector<RankedTarget> RankTargets(const at::Tensor& logits, const at::Tensor& targets, int64_t count);

// The entropies of softmax(logits / temperature), float32 [N], from TokenScores::sums.
at::Tensor Entropies(const at::Tensor& logits, const at::Tensor& sums, double temperature);

// Of a loss whose gradients with respect to the log-probabilities of targets and the entropies are given, float32 [N]
// each, the gradient with respect to the logits, [N, V] in their dtype. `entropies` and `of_entropies` may be
// undefined.
struct ScoreGradients {
  at::Tensor of_log_probs;
  at::Tensor of_entropies;
};
at::Tensor LogitGradient(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& sums,
                         const at::Tensor& entropies, const ScoreGradients& gradients, double temperature);

// A token for each row, with its log-probability as by TokenLogProbs(), which is not finite where the row has no
// distribution.
struct ChosenTokens {
  std::vector<int64_t> tokens;
  std::vector<float> log_probs;
};
// The token at which the running sum of the probabilities softmax(logits / temperature) exceeds a uniform number of
// [0, 1), of each row. Never one of probability zero.
ChosenTokens SampleTokens(const at::Tensor& logits, double temperature, std::span<const double> uniforms);
// The most likely token, of equal ones the first, with its log-probability at temperature 1.
ChosenTokens LikeliestTokens(const at::Tensor& logits);

}  // namespace tdock::kernels
