#include "trainer/algo/reward_pairs.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tdock::algo {

RewardPair ComparePair(std::span<const int64_t> chosen, std::span<const int64_t> rejected, int64_t width) {
  RewardPair pair{.chosen_length = static_cast<int64_t>(chosen.size()),
                  .rejected_length = static_cast<int64_t>(rejected.size())};
  TORCH_CHECK(!chosen.empty() && !rejected.empty() && std::max(pair.chosen_length, pair.rejected_length) <= width,
              "a pair has sequences of 1 to ", width, " tokens, not of ", chosen.size(), " and ", rejected.size());
  const auto differs = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end()).first;
  pair.begin = differs - chosen.begin();
  pair.end = std::max(pair.chosen_length, pair.rejected_length);
  if (pair.begin == pair.end) {  // they are equal
    pair.begin = width - 1;
    pair.end = width;
  }
  return pair;
}

at::Tensor PairLoss(const at::Tensor& chosen_values, const at::Tensor& rejected_values, const RewardPair& pair) {
  TORCH_CHECK(chosen_values.sizes() == rejected_values.sizes() && pair.begin >= 0 && pair.begin < pair.end &&
                  pair.end <= chosen_values.size(0),
              "tokens ", pair.begin, " to ", pair.end, " are compared of rows of ", chosen_values.size(0), " and ",
              rejected_values.size(0), " values");
  const at::Tensor margin = (chosen_values - rejected_values).slice(0, pair.begin, pair.end);
  return -at::log_sigmoid(margin).mean();
}

at::Tensor LastTokenScore(const at::Tensor& values, int64_t length) {
  TORCH_CHECK(length >= 1 && length <= values.size(0), "an answer of ", length, " tokens has no last one among ",
              values.size(0));
  return values[length - 1];
}

}  // namespace tdock::algo
