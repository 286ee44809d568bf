// Rewards of two answers to the same prompt, of which one was chosen: the spans that are compared, their loss and
// scores. Source: DeepSpeed-Chat, training/utils/model/reward_model.py.
//
// Shapes: L tokens of a sequence. A value head gives one number for each token: values are float [L].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tdock::algo {

struct Padding {
  int64_t token = 0;
  // Of the tokens at the beginning of every sequence: OPT's tokenizer puts one there that equals the padding.
  int64_t at_beginning = 0;
};

// The number of tokens of an answer and its prompt: the place of the first padding behind those at the beginning, or L.
int64_t LengthOf(std::span<const int64_t> tokens, const Padding& padding);

struct RewardPair {
  int64_t chosen_length = 0;    // as LengthOf()
  int64_t rejected_length = 0;  // the same; of two sequences that are equal, the chosen one's
  int64_t begin = 0;            // the first place where the two differ; L - 1 where they are equal
  int64_t end = 0;              // behind the longer one; L where they are equal
};

// Throws c10::Error where the lengths differ, or there is no place to compare: a padding at the beginning that
// `padding` does not know of.
RewardPair ComparePair(std::span<const int64_t> chosen, std::span<const int64_t> rejected, const Padding& padding);

// The mean over [begin, end) of -log sigmoid(chosen - rejected), a scalar with gradients. The values are [L].
// Throws c10::Error where the span is not inside of both.
at::Tensor PairLoss(const at::Tensor& chosen_values, const at::Tensor& rejected_values, const RewardPair& pair);

// The value of the last token of an answer, a scalar. Throws c10::Error for a length below 1 or above L.
at::Tensor LastTokenScore(const at::Tensor& values, int64_t length);

// The length of a prompt with its answer where padding may stand in front of the prompt: the place of the first padding
// from `prompt_length` on, or L.
int64_t AnsweredLength(std::span<const int64_t> tokens, int64_t prompt_length, int64_t padding_token);

}  // namespace tdock::algo
