// How samples are laid out for one forward pass.
//
// Samples of one prompt share the pass over it: a row holds the prompt once, and behind it the responses, none of which
// sees another. For a prompt 5 6 7 with the responses a b c, d e and f:
//
//   tokens       5 6 7 a b d          the last token of a response predicts nothing, so it is not fed
//   positions    0 1 2 3 4 3
//   predicts         a b c e          and 7 also predicts d and f
//
//                5 6 7 a b d
//            5   x                    who sees whom (row sees column)
//            6   x x
//            7   x x x
//            a   x x x x
//            b   x x x x x
//            d   x x x     x
//
// A full pass over each sample alone gives the same numbers for more work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace tdock::train {

struct Sequence {
  std::span<const int32_t> prompt;    // at least one token
  std::span<const int32_t> response;  // at least one token
};

struct Layout {
  model::TokenBatch batch;
  // For each response token, sample by sample in the order given: N tokens in all.
  at::Tensor predictors;  // int64 [N]: which place of the batch, seen as [B·T], predicts it
  at::Tensor targets;     // int64 [N]: the token
};

// Samples with equal prompts share a row while it has at most `max_row_tokens` tokens, wherever they stand in the list;
// a row holds at least one sample. Tensors are on `device`.
Layout MakeLayout(std::span<const Sequence> samples, int64_t max_row_tokens, const at::Device& device);

// The log-probabilities of the response tokens under softmax(logits / temperature), float [N], with gradients where
// they are enabled. Where `entropy` is given it receives the entropies of those distributions, [N], without gradients.
at::Tensor ResponseLogProbs(const model::Decoder& decoder, const Layout& layout, double temperature,
                            at::Tensor* entropy = nullptr);

}  // namespace tdock::train
