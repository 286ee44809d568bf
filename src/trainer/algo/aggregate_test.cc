#include "trainer/algo/aggregate.h"

#include <gmock/gmock.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

constexpr Aggregation kAggregations[] = {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenSum,
                                         Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSumNorm};

// Two sequences that count, of 3 and 1 tokens, and one of which no token does.
Tokens ThreeSequences() { return MakeTokens(Numbers({1, 1, 1, 0, 1, 0}), std::vector<int64_t>{4, 1, 1}); }

double Aggregated(const at::Tensor& values, const Tokens& tokens, Aggregation how, double norm = 0) {
  return Aggregate(values, tokens, CountsOf(tokens), {how, norm}).item<double>();
}

TEST(Aggregate, GivesEachOfTheFourMeans) {
  const Tokens tokens = ThreeSequences();
  const at::Tensor values = Numbers({1, 2, 6, kNan, 5, kInfinity});
  EXPECT_NEAR(Aggregated(values, tokens, Aggregation::kTokenMean), 14.0 / 4, 1e-15);
  EXPECT_NEAR(Aggregated(values, tokens, Aggregation::kSeqMeanTokenSum), (9 + 5) / 2.0, 1e-15);
  EXPECT_NEAR(Aggregated(values, tokens, Aggregation::kSeqMeanTokenMean), (3 + 5) / 2.0, 1e-15);
  EXPECT_NEAR(Aggregated(values, tokens, Aggregation::kSeqMeanTokenSumNorm, 10), 14 / 20.0, 1e-15);
}

TEST(Aggregate, HasTheGradientsOfItsFormula) {
  const Tokens tokens = ThreeSequences();
  for (const Aggregation how : kAggregations) {
    const auto loss = [&](const std::vector<at::Tensor>& x) {
      return Aggregate(x[0].square(), tokens, CountsOf(tokens), {how, 5.0});
    };
    EXPECT_TRUE(GradientsMatch(loss, {Normal(6, 1)})) << static_cast<int>(how);
  }
}

TEST(Aggregate, RefusesAMeanOverNothing) {
  const Tokens tokens = MakeTokens(at::zeros({2}), std::vector<int64_t>{1, 1});
  for (const Aggregation how : kAggregations) {
    EXPECT_THAT(ErrorOf([&] { Aggregated(at::zeros({2}), tokens, how, 1); }), Mentions({"over 0"}));
    EXPECT_EQ(Aggregate(at::zeros({2}), tokens, {.tokens = 3, .sequences = 2}, {how, 1}).item<double>(), 0);
  }
  EXPECT_THAT(ErrorOf([] { Aggregated(at::zeros({1}), All({1}), Aggregation::kSeqMeanTokenSumNorm); }),
              Mentions({"seq-mean-token-sum-norm", "not 0"}));
}

TEST(TokenMean, LeavesOutWhatIsMaskedWhateverItHolds) {
  const at::Tensor values = Numbers({1, kInfinity, 2, kNan, -kInfinity, 6}).set_requires_grad(true);
  const at::Tensor mask = Numbers({1, 0, 1, 0, 0, 1});
  const at::Tensor mean = TokenMean(values, mask, 3);
  EXPECT_EQ(mean.item<double>(), 3.0);
  EXPECT_TRUE(at::equal(torch::autograd::grad({mean}, {values})[0], mask / 3));
}

TEST(TokenMean, RefusesAMeanOverNothing) {
  const at::Tensor none = at::zeros({3});
  EXPECT_THROW(TokenMean(none, none, 0), c10::Error);
  EXPECT_THROW(TokenMean(none, none, kNan), c10::Error);
  EXPECT_THROW(TokenMean(none, at::ones({2}), 2), c10::Error);
}

TEST(SupervisedLoss, IsTheMeanOfMinusLogPWithItsGradient) {
  const Tokens tokens = ThreeSequences();
  const at::Tensor log_probs = Numbers({-1, -2, -6, kNan, -5, 0});
  EXPECT_NEAR(SupervisedLoss(log_probs, tokens, CountsOf(tokens)).item<double>(), 14.0 / 4, 1e-15);
  EXPECT_TRUE(
      GradientsMatch([&](const auto& x) { return SupervisedLoss(x[0], tokens, CountsOf(tokens)); }, {Normal(6, 4)}));
  EXPECT_THAT(ErrorOf([&] {
                SupervisedLoss(Numbers({-1, -kInfinity, 0, 0, 0, 0}), tokens, CountsOf(tokens));
              }),
              Mentions({"log-probabilities", "token 1", "sample 0", "-inf"}));
}

}  // namespace
}  // namespace tdock::algo
