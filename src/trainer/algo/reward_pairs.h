// The loss of DeepSpeed-Chat's reward model: two answers to the same prompt are compared at every token behind what
// they share. Source: DeepSpeed-Chat, training/utils/model/reward_model.py.
//
// Sequences are given with their lengths, not with a padding token to look for: a token that equals the padding, as
// OPT's first one does, is one like others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tdock::algo {

// The places [begin, end) at which a pair is compared.
struct RewardPair {
  int64_t chosen_length = 0;
  int64_t rejected_length = 0;
  int64_t begin = 0;  // the first place where the two differ; width − 1 where they are equal
  int64_t end = 0;    // behind the longer one; width where they are equal
};

// Prompt and answer, without padding. `width` is the number of values that there are for each, with those of padding:
// the span ends behind the longer answer, so it may have values of the shorter one's padding in it. Throws for a
// sequence that is empty or longer than the width.
RewardPair ComparePair(std::span<const int64_t> chosen, std::span<const int64_t> rejected, int64_t width);

// The mean over [begin, end) of −log σ(chosen − rejected), a scalar with gradients. The values are float [L]. Throws
// where the span is empty or not inside of both.
at::Tensor PairLoss(const at::Tensor& chosen_values, const at::Tensor& rejected_values, const RewardPair& pair);

// The value of the last of `length` tokens, a scalar. Throws for a length below 1 or above L.
at::Tensor LastTokenScore(const at::Tensor& values, int64_t length);

}  // namespace tdock::algo
