// Log-probabilities of tokens from logits on the CPU, the same for a row whatever the other rows are. Both who samples
// and who trains call these in batch-invariant mode, so that they agree on every bit.
//
// Shapes: N rows, V vocabulary. logits: [N, V], float32 or bfloat16; computed in float32; temperature > 0. Thread-safe;
// they throw c10::Error for other devices, dtypes and shapes. No gradients flow.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::kernels {

struct TokenScores {
  at::Tensor log_probs;  // float32 [N]
  at::Tensor sums;       // float32 [N]: log Σ exp(logits / temperature)
};

// log softmax(logits / temperature) at targets, int64 [N].
TokenScores TokenLogProbs(const at::Tensor& logits, const at::Tensor& targets, double temperature);

// log softmax(logits / temperature), float32 [N, V]: at a target it equals TokenLogProbs().
at::Tensor LogSoftmax(const at::Tensor& logits, double temperature);

}  // namespace tdock::kernels
