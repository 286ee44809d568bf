// The layout of samples for one forward pass.
//
// Rows are packed: a row holds several prompts, each once, followed by their responses. A token attends to the
// preceding tokens of its own prompt and its own response, and nothing else. For a prompt 5 6 7 with the responses a b
// c, d e and f, and a prompt 8 with the response g h:
//
//   tokens       5 6 7 a b d 8 g      the last token of a response predicts nothing, so it is not fed
//   positions    0 1 2 3 4 3 0 1
//   predicts         a b c e g h      and 7 also predicts d and f
//
//                5 6 7 a b d 8 g
//            5   x                    who sees whom (row sees column)
//            6   x x
//            7   x x x
//            a   x x x x
//            b   x x x x x
//            d   x x x     x
//            8               x
//            g               x x
//
// A full pass over each sample alone gives the same numbers at a higher cost.
//
// Rows of about the same length are padded to the longest. Otherwise they are concatenated to one row, in which none
// attends to another (TokenBatch::lengths), so that nothing is computed for padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder/decoder.h"
#include "trainer/stages/log_probs.h"

namespace tdock::trainer {

struct Sequence {
  std::span<const int32_t> prompt;    // at least one token
  std::span<const int32_t> response;  // at least one token
};

// What is read of a model's output for each response token.
enum class Scored {
  kLogProbs,      // its log-probability
  kValuesBefore,  // the value of what comes before it, of which a critic is asked
  kValuesAt,      // the value at the token itself, of which a reward model is asked: the last token is fed, too
};

struct Layout {
  model::TokenBatch batch;
  // For each response token, sample by sample in the order given: N tokens in all.
  at::Tensor places;  // int64 [N]: the position in the batch, viewed as [B·T], that predicts it; for kValuesAt its own
  at::Tensor targets;  // int64 [N]: the token
};

// A row has at most `max_row_tokens` tokens, but at least one sample. Samples share a prompt wherever they are in the
// list, as long as its row has room: up to `max_shared_row_tokens`, if that is more. Tensors are on `device`.
Layout MakeLayout(std::span<const Sequence> samples, int64_t max_row_tokens, const at::Device& device,
                  Scored scored = Scored::kLogProbs, int64_t max_shared_row_tokens = 0);

// Of the response tokens under softmax(logits / temperature).
ResponseFigures ScoreResponses(const model::Decoder& decoder, const Layout& layout, double temperature,
                               Entropy entropy = Entropy::kNone);

// The values at the layout's places, float [N], of a decoder with a value head.
at::Tensor ScoreValues(const model::Decoder& decoder, const Layout& layout);

}  // namespace tdock::trainer
