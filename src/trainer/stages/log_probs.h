// Log-probabilities of tokens from logits.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::trainer {

// Whether the entropies of distributions are wanted, and whether they are trained on.
enum class Entropy { kNone, kWithoutGradients, kWithGradients };

struct ResponseFigures {
  at::Tensor log_probs;     // float [N], with gradients if they are enabled
  at::Tensor entropy = {};  // float [N], of the distributions; undefined for Entropy::kNone
};

// log softmax(logits / temperature) at the targets, and the entropies. logits: [N, V] of any floating-point dtype;
// computed in float32, or float64 for float64: nothing of the size of the logits is held but them and, in the backward
// pass, their gradient. On the CPU in float32 and bfloat16, log-probabilities are those of kernels::TokenLogProbs():
// the bits that sampling records, whatever the other rows are. targets: int64 [N]. Gradients flow once. Thread-safe.
ResponseFigures ScoreTokens(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                            Entropy entropy = Entropy::kNone);

}  // namespace tdock::trainer
