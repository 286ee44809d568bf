// Floating-point operations of passes through a decoder, as the figures of other systems count them. A multiplication
// and an addition are two operations; only products of matrices count.
#pragma once

#include <cstdint>

#include "model/files/config.h"

namespace tdock::model {

// Of a forward pass over one sequence of `tokens` tokens:
//
//   2·N·tokens + Σ over the layers 4·tokens·min(tokens, window)·heads·head dim
//
// N are the weights of all matrices. The table of embeddings is one of them and counts as if tokens were multiplied by
// it; half of the pairs of tokens are masked and count. A backward pass takes twice as many.
//
// Three times this equals what verl counts for training a Llama, Mistral (without a window), Qwen2 or Qwen3
// (verl/utils/flops_counter.py).
double ForwardFlops(const ModelConfig& config, int64_t tokens);

// Of training on one sequence, as DeepSpeed-Chat counts: 24·f·s·L·h²·(1 + s/(6h) + V/(16·L·h)), with s tokens, L
// layers, h hidden units and V tokens in the vocabulary; f is 4 if all activations are computed again, otherwise 3.
// An mlp has 8·h² weights in it, and every head its own keys and values, whatever the model has.
double DeepSpeedChatFlops(const ModelConfig& config, int64_t tokens, bool recomputed);

}  // namespace tdock::model
