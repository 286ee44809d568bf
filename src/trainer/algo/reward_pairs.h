// The loss of DeepSpeed-Chat's reward model: two answers to the same prompt are compared at every token behind what
// they share. Source: DeepSpeed-Chat, training/utils/model/reward_model.py.
//
// The span is given, not found by looking for padding: a token that equals the padding, as OPT's first one does, is one
// like others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tdock::algo {

// The places [begin, end) at which a pair is compared.
struct RewardPair {
  int64_t begin = 0;  // the first place where the two differ
  int64_t end = 0;    // behind the longer one
};

// The mean over [begin, end) of −log σ(chosen − rejected), a scalar with gradients. The values are float [L]. Throws
// where the span is empty or not inside of both.
at::Tensor PairLoss(const at::Tensor& chosen_values, const at::Tensor& rejected_values, const RewardPair& pair);

}  // namespace tdock::algo
