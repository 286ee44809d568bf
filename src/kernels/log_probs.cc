// Shapes: N rows, V vocabulary.
#include "kernels/log_probs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

float Inverse(double temperature) { return static_cast<float>(1 / temperature); }

// By rank.
bool GoesBefore(const LikelyToken& a, const LikelyToken& b) {
  return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.token < b.token;
}

// Adds tokens from `first` on to a heap of the `count` likeliest of those before them, the one of the last rank on top.
void AddLikely(std::span<const float> log_probs, int64_t first, int64_t count, std::vector<LikelyToken>& heap) {
  const auto full = [&] { return std::cmp_equal(heap.size(), count); };
  const auto least = [&] { return full() ? heap.front().log_prob : -std::numeric_limits<float>::infinity(); };
  float beyond = least();
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (!(log_probs[i] > beyond)) continue;
    if (full()) {
      std::pop_heap(heap.begin(), heap.end(), GoesBefore);
      heap.pop_back();
    }
    heap.push_back({first + static_cast<int64_t>(i), log_probs[i]});
    std::push_heap(heap.begin(), heap.end(), GoesBefore);
    beyond = least();
  }
}

// A row of logits and the sums over its blocks.
template <class T>
class SummedRow {
 public:
  SummedRow(const T* logits, float inverse, int64_t size)
      : logits_(logits), size_(size), inverse_(inverse), blocks_((size + kLogitsOfBlock - 1) / kLogitsOfBlock) {
    loops_.sum_blocks(logits, inverse, size, blocks_.data());
    for (const BlockSum& block : blocks_) largest_ = std::max(largest_, block.largest);
    for (const BlockSum& block : blocks_) total_ += static_cast<double>(block.sum) * UnitOf(block);
    log_sum_ = static_cast<float>(static_cast<double>(largest_) + std::log(total_));
  }

  float log_sum() const { return log_sum_; }

  float LogProbOf(int64_t token) const {
    float log_prob = 0;
    loops_.log_probs(logits_ + token, inverse_, log_sum_, &log_prob, 1);
    return log_prob;
  }

  RankedTarget Rank(int64_t target, int64_t count) const {
    RankedTarget ranked{.log_prob = LogProbOf(target)};
    std::array<float, kLogitsOfBlock> buffer;
    for (int64_t begin = 0; begin < size_; begin += kLogitsOfBlock) {
      const std::span block(buffer.data(), static_cast<size_t>(std::min(size_ - begin, kLogitsOfBlock)));
      loops_.log_probs(logits_ + begin, inverse_, log_sum_, block.data(), std::ssize(block));
      const auto lower = block.begin() + std::clamp<int64_t>(target - begin, 0, std::ssize(block));
      ranked.rank += std::count_if(block.begin(), lower, [&](float x) { return x >= ranked.log_prob; });
      ranked.rank += std::count_if(lower, block.end(), [&](float x) { return x > ranked.log_prob; });
      if (count > 0) AddLikely(block, begin, count, ranked.likeliest);
    }
    std::sort_heap(ranked.likeliest.begin(), ranked.likeliest.end(), GoesBefore);
    return ranked;
  }

  // Of logits at temperature 1, the first of the largest.
  int64_t LikeliestToken() const {
    size_t chosen = 0;
    while (chosen + 1 < blocks_.size() && blocks_[chosen].largest != largest_) ++chosen;
    const int64_t begin = static_cast<int64_t>(chosen) * kLogitsOfBlock;
    return begin + loops_.find_largest(logits_ + begin, std::min(size_ - begin, kLogitsOfBlock));
  }

  int64_t TokenAt(double uniform) const {
    const double target = uniform * total_;
    double before = 0;
    // If rounding keeps the sum of all below the target, the last block with a probability is searched to its end.
    double within = std::numeric_limits<double>::infinity();
    size_t chosen = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const double unit = UnitOf(blocks_[b]);
      const double sum = static_cast<double>(blocks_[b].sum) * unit;
      if (!(sum > 0)) continue;
      chosen = b;
      if (before + sum > target) {
        within = (target - before) / unit;
        break;
      }
      before += sum;
    }
    const int64_t begin = static_cast<int64_t>(chosen) * kLogitsOfBlock;
    return begin + loops_.find_in_block(logits_ + begin, inverse_, blocks_[chosen].largest, within,
                                        std::min(size_ - begin, kLogitsOfBlock));
  }

 private:
  // What a block's sums count in the total.
  double UnitOf(const BlockSum& block) const {
    return std::exp(static_cast<double>(block.largest) - static_cast<double>(largest_));
  }

  const TypedLoops<T>& loops_ = LoopsInUse().of<T>();
  const T* const logits_;
  const int64_t size_;
  const float inverse_;  // of the temperature
  std::vector<BlockSum> blocks_;
  float largest_ = -std::numeric_limits<float>::infinity();
  double total_ = 0;  // Σ exp(logit / temperature - largest)
  float log_sum_;
};

// Calls body(the logits of a row, the row) for every row.
template <class Body>
void ForRows(const at::Tensor& logits_NV, double temperature, Body&& body) {
  CheckKernelTensor(logits_NV, "logits");
  TORCH_CHECK(logits_NV.dim() == 2 && logits_NV.size(1) > 0 && temperature > 0,
              "log-probabilities are of logits [N, V] at a positive temperature, not of ", logits_NV.sizes(), " at ",
              temperature);
  const at::Tensor rows_NV = logits_NV.contiguous();
  const int64_t size = rows_NV.size(1);
  WithTypeOf(rows_NV, [&](auto type) {
    using T = decltype(type);
    InParts(rows_NV.size(0), size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) body(rows_NV.const_data_ptr<T>() + row * size, row);
    });
  });
}

template <class Body>
void ForSummedRows(const at::Tensor& logits_NV, double temperature, Body&& body) {
  ForRows(logits_NV, temperature, [&](const auto* logits, int64_t row) {
    body(SummedRow(logits, Inverse(temperature), logits_NV.size(1)), row);
  });
}

// Tokens of rows, as numbers.
at::Tensor CheckTargets(const at::Tensor& targets_N, const at::Tensor& logits_NV) {
  TORCH_CHECK(logits_NV.dim() == 2 && targets_N.is_cpu() && targets_N.scalar_type() == at::kLong &&
                  targets_N.sizes() == at::IntArrayRef({logits_NV.size(0)}),
              "targets of ", targets_N.scalar_type(), " ", targets_N.sizes(), " do not fit logits of ",
              logits_NV.sizes());
  const at::Tensor tokens_N = targets_N.contiguous();
  for (int64_t i = 0; i < tokens_N.numel(); ++i) {
    const int64_t token = tokens_N.const_data_ptr<int64_t>()[i];
    TORCH_CHECK_INDEX(token >= 0 && token < logits_NV.size(1), "token ", token, " is outside of the vocabulary of ",
                      logits_NV.size(1));
  }
  return tokens_N;
}

// A float32 for each row, or null if there is none.
class RowFigures {
 public:
  RowFigures(const at::Tensor& given_N, const at::Tensor& logits_NV, const char* what) {
    if (!given_N.defined()) return;
    TORCH_CHECK(given_N.is_cpu() && given_N.scalar_type() == at::kFloat &&
                    given_N.sizes() == at::IntArrayRef({logits_NV.size(0)}),
                what, " of rows of logits ", logits_NV.sizes(), " are float32 [N], not ", given_N.scalar_type(), " ",
                given_N.sizes());
    tensor_N_ = given_N.contiguous();
  }

  float operator[](int64_t row) const { return tensor_N_.defined() ? tensor_N_.const_data_ptr<float>()[row] : 0; }

 private:
  at::Tensor tensor_N_;
};

}  // namespace

bool TakesLogits(const at::Tensor& logits) { return logits.is_cpu() && IsElementwise(logits); }

TokenScores TokenLogProbs(const at::Tensor& logits_NV, const at::Tensor& targets_N, double temperature) {
  const at::Tensor tokens_N = CheckTargets(targets_N, logits_NV);
  TokenScores scores{at::empty(targets_N.sizes(), at::kFloat), at::empty(targets_N.sizes(), at::kFloat)};
  ForSummedRows(logits_NV, temperature, [&](const auto& summed, int64_t row) {
    scores.log_probs.mutable_data_ptr<float>()[row] = summed.LogProbOf(tokens_N.const_data_ptr<int64_t>()[row]);
    scores.sums.mutable_data_ptr<float>()[row] = summed.log_sum();
  });
  return scores;
}

std::vector<RankedTarget> RankTargets(const at::Tensor& logits_NV, const at::Tensor& targets_N, int64_t count) {
  const at::Tensor tokens_N = CheckTargets(targets_N, logits_NV);
  std::vector<RankedTarget> ranked(static_cast<size_t>(tokens_N.numel()));
  ForSummedRows(logits_NV, /*temperature=*/1, [&](const auto& summed, int64_t row) {
    ranked[static_cast<size_t>(row)] = summed.Rank(tokens_N.const_data_ptr<int64_t>()[row], count);
  });
  return ranked;
}

at::Tensor LogSoftmax(const at::Tensor& logits_NV, double temperature) {
  at::Tensor log_probs_NV = at::empty(logits_NV.sizes(), at::kFloat);
  ForRows(logits_NV, temperature, [&](const auto* logits, int64_t row) {
    const int64_t size = logits_NV.size(1);
    const float inverse = Inverse(temperature);
    LoopsInUse().of<std::decay_t<decltype(*logits)>>().log_probs(
        logits, inverse, SummedRow(logits, inverse, size).log_sum(),
        log_probs_NV.mutable_data_ptr<float>() + row * size, size);
  });
  return log_probs_NV;
}

at::Tensor Entropies(const at::Tensor& logits_NV, const at::Tensor& sums_N, double temperature) {
  const RowFigures sums(sums_N, logits_NV, "sums");
  at::Tensor entropies_N = at::empty({logits_NV.size(0)}, at::kFloat);
  ForRows(logits_NV, temperature, [&](const auto* logits, int64_t row) {
    entropies_N.mutable_data_ptr<float>()[row] = LoopsInUse().of<std::decay_t<decltype(*logits)>>().entropy(
        logits, Inverse(temperature), sums[row], logits_NV.size(1));
  });
  return entropies_N;
}

at::Tensor LogitGradient(const at::Tensor& logits_NV, const at::Tensor& targets_N, const at::Tensor& sums_N,
                         const at::Tensor& entropies_N, const ScoreGradients& gradients, double temperature) {
  const at::Tensor tokens_N = CheckTargets(targets_N, logits_NV);
  const RowFigures sums(sums_N, logits_NV, "sums"), entropies(entropies_N, logits_NV, "entropies"),
      of_log_probs(gradients.of_log_probs, logits_NV, "gradients"),
      of_entropies(gradients.of_entropies, logits_NV, "gradients");
  at::Tensor gradient_NV = at::empty(logits_NV.sizes(), logits_NV.options());
  ForRows(logits_NV, temperature, [&](const auto* logits, int64_t row) {
    using T = std::decay_t<decltype(*logits)>;
    const int64_t size = logits_NV.size(1);
    LoopsInUse().of<T>().log_prob_gradient(logits, Inverse(temperature),
                                           {.target = tokens_N.const_data_ptr<int64_t>()[row],
                                            .log_sum = sums[row],
                                            .entropy = entropies[row],
                                            .of_log_prob = of_log_probs[row],
                                            .of_entropy = of_entropies[row]},
                                           gradient_NV.mutable_data_ptr<T>() + row * size, size);
  });
  return gradient_NV;
}

ChosenTokens SampleTokens(const at::Tensor& logits_NV, double temperature, std::span<const double> uniforms) {
  TORCH_CHECK(logits_NV.dim() == 2 && std::cmp_equal(logits_NV.size(0), uniforms.size()), uniforms.size(),
              " uniform numbers do not fit logits of ", logits_NV.sizes());
  ChosenTokens chosen{std::vector<int64_t>(uniforms.size()), std::vector<float>(uniforms.size())};
  ForSummedRows(logits_NV, temperature, [&](const auto& summed, int64_t row) {
    const auto r = static_cast<size_t>(row);
    chosen.tokens[r] = summed.TokenAt(uniforms[r]);
    chosen.log_probs[r] = summed.LogProbOf(chosen.tokens[r]);
  });
  return chosen;
}

ChosenTokens LikeliestTokens(const at::Tensor& logits_NV) {
  const auto rows = static_cast<size_t>(logits_NV.size(0));
  ChosenTokens chosen{std::vector<int64_t>(rows), std::vector<float>(rows)};
  ForSummedRows(logits_NV, /*temperature=*/1, [&](const auto& summed, int64_t row) {
    const auto r = static_cast<size_t>(row);
    chosen.tokens[r] = summed.LikeliestToken();
    chosen.log_probs[r] = summed.LogProbOf(chosen.tokens[r]);
  });
  return chosen;
}

}  // namespace tdock::kernels
