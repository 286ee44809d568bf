#include "trainer/algo/reward_pairs.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tdock::algo {

int64_t LengthOf(std::span<const int64_t> tokens, const Padding& padding) {
  int64_t seen = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == padding.token && seen++ == padding.at_beginning) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(tokens.size());
}

RewardPair ComparePair(std::span<const int64_t> chosen, std::span<const int64_t> rejected, const Padding& padding) {
  TORCH_CHECK(chosen.size() == rejected.size() && !chosen.empty(), "a pair must have two rows of the same length, not ",
              chosen.size(), " and ", rejected.size(), " tokens");
  const auto length = static_cast<int64_t>(chosen.size());
  RewardPair pair{.chosen_length = LengthOf(chosen, padding), .rejected_length = LengthOf(rejected, padding)};
  const auto differs = std::mismatch(chosen.begin(), chosen.end(), rejected.begin()).first;
  if (differs == chosen.end()) {
    pair.rejected_length = pair.chosen_length;
    pair.begin = length - 1;
    pair.end = length;
    return pair;
  }
  pair.begin = differs - chosen.begin();
  pair.end = std::max(pair.chosen_length, pair.rejected_length);
  TORCH_CHECK(pair.begin < pair.end, "the answers differ first at token ", pair.begin, ", but end at token ", pair.end,
              ": sequences begin with more than ", padding.at_beginning, " tokens that equal the padding (",
              padding.token, ")");
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

int64_t AnsweredLength(std::span<const int64_t> tokens, int64_t prompt_length, int64_t padding_token) {
  TORCH_CHECK(prompt_length >= 0 && prompt_length <= static_cast<int64_t>(tokens.size()), "a prompt of ", prompt_length,
              " tokens does not fit a row of ", tokens.size());
  return std::find(tokens.begin() + prompt_length, tokens.end(), padding_token) - tokens.begin();
}

}  // namespace tdock::algo
