#include "kernels/log_probs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/loops.h"
#include "kernels/testing/tensors.h"

namespace tdock::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Vocabularies of one block, of several, and with a part of one at the end.
constexpr int64_t kVocabularies[] = {1, 77, kLogitsOfBlock, 3 * kLogitsOfBlock + 21};

TEST(LogProbs, OfTokensAreThoseOfTheWholeDistribution) {
  for (const at::ScalarType type : kTypes) {
    for (const double temperature : {1.0, 0.7}) {
      for (const int64_t size : kVocabularies) {
        const at::Tensor logits = (Normal({11, size}, 1) * 4).to(type);
        const at::Tensor targets = at::arange(11, at::kLong) * 397 % size;
        const TokenScores scores = TokenLogProbs(logits, targets, temperature);
        const at::Tensor all = LogSoftmax(logits, temperature);
        const at::Tensor scaled = logits.to(at::kDouble) / temperature;
        EXPECT_LT(LargestDifference(all, at::log_softmax(scaled, -1)), 5e-6);
        EXPECT_TRUE(SameBits(all.gather(1, targets.unsqueeze(1)).squeeze(1), scores.log_probs));
        EXPECT_LT(LargestDifference(scores.sums, at::logsumexp(scaled, -1)), 5e-6);
        for (int64_t row = 0; row < 11; ++row) {
          EXPECT_TRUE(SameBits(LogSoftmax(logits.narrow(0, row, 1), temperature), all.narrow(0, row, 1))) << row;
        }
      }
    }
  }
}

TEST(LogProbs, OfImpossibleTokensAreMinusInfinity) {
  at::Tensor logits = Normal({2, 3 * kLogitsOfBlock}, 1);
  logits.narrow(1, 3, 2 * kLogitsOfBlock).fill_(kNever);  // a whole block of them
  const at::Tensor all = LogSoftmax(logits, 1.0);
  EXPECT_TRUE(all.narrow(1, 3, 5).isinf().all().item<bool>());
  EXPECT_NEAR(all.exp().sum().item<double>(), 2.0, 1e-5);
  const TokenScores scores = TokenLogProbs(logits, at::tensor({0, 1}, at::kLong), 1.0);
  const at::Tensor gradient =
      LogitGradient(logits, at::tensor({0, 1}, at::kLong), scores.sums, Entropies(logits, scores.sums, 1.0),
                    {.of_log_probs = at::ones({2}), .of_entropies = at::ones({2})}, 1.0);
  EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  EXPECT_THROW(TokenLogProbs(logits, at::tensor({0, int{3 * kLogitsOfBlock}}, at::kLong), 1.0), c10::Error);
}

// Some logits are equal, and some impossible.
TEST(LogProbs, RankTargetsAmongTheTokensOfTheirRows) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : kVocabularies) {
      at::Tensor logits = (Normal({11, size}, 5) * 2).round().to(type);
      if (size > 30) logits.narrow(1, 7, 20).fill_(kNever);
      const at::Tensor targets = (at::arange(11, at::kLong) * 397 + 30) % size;
      const at::Tensor all = LogSoftmax(logits, 1.0);
      const auto [sorted, order] = all.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
      const at::Tensor log_probs = TokenLogProbs(logits, targets, 1.0).log_probs;
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{40}, size + 1}) {
        const std::vector<RankedTarget> ranked = RankTargets(logits, targets, count);
        ASSERT_EQ(ranked.size(), 11u);
        for (int64_t row = 0; row < 11; ++row) {
          const RankedTarget& target = ranked[static_cast<size_t>(row)];
          EXPECT_EQ(target.log_prob, log_probs[row].item<float>());
          EXPECT_EQ(order[row][target.rank - 1].item<int64_t>(), targets[row].item<int64_t>());
          const int64_t possible = all[row].isfinite().sum().item<int64_t>();
          ASSERT_EQ(std::ssize(target.likeliest), std::min(count, possible)) << size;
          for (int64_t i = 0; i < std::ssize(target.likeliest); ++i) {
            EXPECT_EQ(target.likeliest[static_cast<size_t>(i)].token, order[row][i].item<int64_t>());
            EXPECT_EQ(target.likeliest[static_cast<size_t>(i)].log_prob, sorted[row][i].item<float>());
          }
        }
      }
    }
  }
}

TEST(LogProbs, WithoutADistributionAreNotFinite) {
  at::Tensor logits = Normal({3, kLogitsOfBlock + 5}, 1);
  logits[0].fill_(kNever);
  logits[1][kLogitsOfBlock + 1] = NAN;
  logits[2][7] = -kNever;
  const std::vector<double> uniforms = {0.1, 0.5, 0.9};
  for (const ChosenTokens& chosen : {SampleTokens(logits, 0.8, uniforms), LikeliestTokens(logits)}) {
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_FALSE(std::isfinite(chosen.log_probs[row])) << row;
      EXPECT_LT(chosen.tokens[row], logits.size(1));
    }
  }
  for (const RankedTarget& ranked : RankTargets(logits, at::tensor({0, 5, 7}, at::kLong), 4)) {
    EXPECT_FALSE(std::isfinite(ranked.log_prob));
  }
}

TEST(LogProbs, AndEntropiesHaveTheGradientsOfFloat64) {
  const int64_t rows = 6;
  const at::Tensor of_log_probs = Normal({rows}, 2), of_entropies = Normal({rows}, 3);
  for (const at::ScalarType type : kTypes) {
    for (const double temperature : {1.0, 0.7}) {
      for (const int64_t size : kVocabularies) {
        const at::Tensor logits = (Normal({rows, size}, 1) * 3).to(type);
        const at::Tensor targets = at::arange(rows, at::kLong) * 397 % size;
        const at::Tensor wide = logits.to(at::kDouble).requires_grad_();
        const at::Tensor all = at::log_softmax(wide / temperature, -1);
        const at::Tensor entropy = -(all.exp() * all).sum(-1);
        const at::Tensor loss = (all.gather(1, targets.unsqueeze(1)).squeeze(1) * of_log_probs).sum();
        const at::Tensor sums = TokenLogProbs(logits, targets, temperature).sums;
        const at::Tensor entropies = Entropies(logits, sums, temperature);
        EXPECT_LT(LargestDifference(entropies, entropy), 2e-5);
        const auto near = type == at::kFloat ? 3e-6 : 2e-2;
        const at::Tensor of_both = torch::autograd::grad({loss + (entropy * of_entropies).sum()}, {wide}, {}, true)[0];
        EXPECT_LT(
            LargestDifference(
                LogitGradient(logits, targets, sums, entropies, {of_log_probs, of_entropies}, temperature), of_both),
            near);
        EXPECT_LT(LargestDifference(LogitGradient(logits, targets, sums, {}, {of_log_probs, {}}, temperature),
                                    torch::autograd::grad({loss}, {wide})[0]),
                  near);
      }
    }
  }
}

// What the running sum of the exact probabilities is before and behind a token.
std::pair<double, double> ShareOf(const at::Tensor& logits, double temperature, int64_t token) {
  const at::Tensor sums = at::softmax(logits.to(at::kDouble) / temperature, -1).cumsum(-1);
  return {token == 0 ? 0 : sums[token - 1].item<double>(), sums[token].item<double>()};
}

TEST(SampleTokens, FindsTheTokenOfTheRunningSumAndItsLogProbability) {
  constexpr int64_t kRows = 40;
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : kVocabularies) {
      const at::Tensor logits = (Normal({kRows, size}, 1) * 3).to(type);
      std::vector<double> uniforms;
      for (int64_t row = 0; row < kRows; ++row) uniforms.push_back(static_cast<double>(row) / kRows);
      uniforms.back() = std::nextafter(1.0, 0.0);
      const ChosenTokens chosen = SampleTokens(logits, 0.7, uniforms);
      const at::Tensor expected = TokenLogProbs(logits, at::tensor(chosen.tokens, at::kLong), 0.7).log_probs;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto r = static_cast<size_t>(row);
        const auto [before, behind] = ShareOf(logits[row], 0.7, chosen.tokens[r]);
        EXPECT_LE(before, uniforms[r] + 1e-6);
        EXPECT_GE(behind, uniforms[r] - 1e-6);
        EXPECT_EQ(chosen.log_probs[r], expected[row].item<float>());
        const ChosenTokens alone = SampleTokens(logits.narrow(0, row, 1), 0.7, {&uniforms[r], 1});
        EXPECT_EQ(alone.tokens[0], chosen.tokens[r]);
        EXPECT_EQ(alone.log_probs[0], chosen.log_probs[r]);
      }
    }
  }
}

TEST(SampleTokens, NeverFindsWhatIsImpossible) {
  const int64_t size = 3 * kLogitsOfBlock;
  for (const int64_t possible : {int64_t{0}, int64_t{5}, kLogitsOfBlock + 700, size - 1}) {
    at::Tensor logits = at::full({1, size}, kNever);
    logits[0][possible] = -3;
    for (const double uniform : {0.0, 0.5, std::nextafter(1.0, 0.0)}) {
      const ChosenTokens chosen = SampleTokens(logits, 1.3, {&uniform, 1});
      EXPECT_EQ(chosen.tokens[0], possible);
      EXPECT_EQ(chosen.log_probs[0], 0);
    }
  }
}

TEST(LikeliestTokens, AreTheFirstOfTheLargest) {
  at::Tensor logits = Normal({3, kLogitsOfBlock + 50}, 1, at::kBFloat16);
  logits[0][40] = logits[0][kLogitsOfBlock + 3] = 9;
  logits[1][kLogitsOfBlock + 49] = 9;
  logits[2].fill_(-7);
  const ChosenTokens chosen = LikeliestTokens(logits);
  EXPECT_EQ(chosen.tokens, (std::vector<int64_t>{40, kLogitsOfBlock + 49, 0}));
  const at::Tensor expected = TokenLogProbs(logits, at::tensor(chosen.tokens, at::kLong), 1.0).log_probs;
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(chosen.log_probs[row], expected[static_cast<int64_t>(row)].item<float>());
  }
}

TEST(SampleTokens, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor logits = Normal({64, 2 * kLogitsOfBlock}, 1);
  std::vector<double> uniforms(64);
  std::iota(uniforms.begin(), uniforms.end(), 0.0);
  for (double& uniform : uniforms) uniform /= 64;
  at::set_num_threads(1);
  const ChosenTokens one = SampleTokens(logits, 1.0, uniforms);
  at::set_num_threads(2);
  const ChosenTokens two = SampleTokens(logits, 1.0, uniforms);
  at::set_num_threads(1);
  EXPECT_EQ(one.tokens, two.tokens);
  EXPECT_EQ(one.log_probs, two.log_probs);
}

TEST(LogProbLoops, OfEveryInstructionSetGiveTheSameWithinRounding) {
  const int64_t size = kLogitsOfBlock;
  const at::Tensor logits = Normal({size}, 1);
  const float* const data = logits.const_data_ptr<float>();
  const double total = at::softmax(logits.to(at::kDouble), -1).max().reciprocal().item<double>();
  for (const Loops* loops : AllLoops()) {
    SCOPED_TRACE(loops->instructions);
    BlockSum sum = {};
    loops->of_float.sum_blocks(data, 1, size, &sum);
    EXPECT_EQ(sum.largest, logits.max().item<float>());
    EXPECT_NEAR(sum.sum, total, total * 1e-6);
    EXPECT_EQ(loops->of_float.find_largest(data, size), logits.argmax().item<int64_t>());
    const int64_t found = loops->of_float.find_in_block(data, 1, sum.largest, total / 3, size);
    const auto [before, behind] = ShareOf(logits, 1, found);
    EXPECT_LE(before, 1.0 / 3 + 1e-6);
    EXPECT_GE(behind, 1.0 / 3 - 1e-6);
    const float log_sum = at::logsumexp(logits, 0).item<float>();
    EXPECT_NEAR(loops->of_float.entropy(data, 1, log_sum, size), LoopsInUse().of_float.entropy(data, 1, log_sum, size),
                1e-4);
  }
}

}  // namespace
}  // namespace tdock::kernels
