#include "trainer/algo/reward_pairs.h"

#include <ATen/ATen.h>

namespace tdock::algo {

at::Tensor PairLoss(const at::Tensor& chosen_values, const at::Tensor& rejected_values, const RewardPair& pair) {
  TORCH_CHECK(chosen_values.sizes() == rejected_values.sizes() && pair.begin >= 0 && pair.begin < pair.end &&
                  pair.end <= chosen_values.size(0),
              "tokens ", pair.begin, " to ", pair.end, " are compared of rows of ", chosen_values.size(0), " and ",
              rejected_values.size(0), " values");
  const at::Tensor margin = (chosen_values - rejected_values).slice(0, pair.begin, pair.end);
  return -at::log_sigmoid(margin).mean();
}

}  // namespace tdock::algo
