#include "trainer/algo/importance.h"

#include <gmock/gmock.h>

#include <cmath>

#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

// d is ln 3, ln ½, – and ln ¼, ln 2: no figure is the same for −d.
const double kLn2 = std::log(2.0), kLn3 = std::log(3.0);
Tokens FiveTokens() { return MakeTokens(Numbers({1, 1, 0, 1, 1}), std::vector<int64_t>{3, 2}); }
at::Tensor Rollout() { return Numbers({-3, -1, kNan, -0.5, -2}); }
at::Tensor Training() { return Numbers({-3 + kLn3, -1 - kLn2, -kInfinity, -0.5 - 2 * kLn2, -2 + kLn2}); }

TEST(RolloutWeights, OfTokensAreTheirRatiosUpToTheCap) {
  const ImportanceWeights result = RolloutWeights(Training(), Rollout(), FiveTokens(), {.cap = 2.5});
  EXPECT_TRUE(Near(result.weights, {2.5, 0.5, 0, 0.25, 2}, 1e-12));
  EXPECT_NEAR(result.figures.mean, (3 + 0.5 + 0.25 + 2) / 4, 1e-12);
  EXPECT_NEAR(result.figures.max, 3, 1e-12);
  EXPECT_NEAR(result.figures.min, 0.25, 1e-12);
  EXPECT_EQ(result.figures.fraction_high, 0.25);
  EXPECT_EQ(result.figures.fraction_low, 0.25);
  EXPECT_NEAR(result.figures.effective_sample_size, 5.25 * 5.25 / (4 * (6.25 + 0.25 + 0.0625 + 4)), 1e-12);
}

TEST(RolloutWeights, OfSequencesAreTheProductsUpToTheCap) {
  const ImportanceWeights result =
      RolloutWeights(Training(), Rollout(), FiveTokens(), {.level = ImportanceLevel::kSequence, .cap = 1.25});
  EXPECT_TRUE(Near(result.weights, {1.25, 1.25, 0, 0.5, 0.5}, 1e-12));
  EXPECT_NEAR(result.figures.mean, (1.5 + 0.5) / 2, 1e-12);
  EXPECT_EQ(result.figures.fraction_high, 0.5);
  EXPECT_EQ(result.figures.fraction_low, 0.5);
}

TEST(RolloutWeights, OfEqualLogProbsAreOne) {
  const ImportanceWeights result = RolloutWeights(Rollout(), Rollout(), FiveTokens());
  EXPECT_TRUE(Near(result.weights, {1, 1, 0, 1, 1}, 0));
  EXPECT_EQ(result.figures.effective_sample_size, 1);
}

TEST(RolloutWeights, RefuseWhatCannotBeCompared) {
  const Tokens none = MakeTokens(at::zeros({2}), std::vector<int64_t>{2});
  const at::Tensor two = at::zeros({2}, at::kDouble);
  EXPECT_THAT(ErrorOf([&] { RolloutWeights(two, two, none); }), Mentions({"no token"}));
  EXPECT_THAT(ErrorOf([&] { RolloutWeights(two, two, All({2}), {.cap = 0}); }), Mentions({"cap", "not 0"}));
  EXPECT_THAT(ErrorOf([&] {
                RolloutWeights(two, Numbers({0, -kInfinity}), All({2}));
              }),
              Mentions({"rollout", "token 1", "sample 0", "-inf"}));
  EXPECT_THAT(ErrorOf([&] { CompareWithRollout(at::zeros({3}), two, All({2})); }),
              Mentions({"training", "[3]", "[2]"}));
}

TEST(RolloutMismatch, GivesEachFigureOfItsFormula) {
  const RolloutMismatch result = CompareWithRollout(Training(), Rollout(), FiveTokens());
  EXPECT_NEAR(result.kl, (2 * kLn2 - kLn3) / 4, 1e-12);
  EXPECT_NEAR(result.k3_kl, (3 + 0.5 + 0.25 + 2 + 2 * kLn2 - kLn3) / 4 - 1, 1e-12);
  EXPECT_NEAR(result.mean_abs_diff, (kLn3 + 4 * kLn2) / 4, 1e-12);
  EXPECT_NEAR(result.max_abs_diff, 2 * kLn2, 1e-12);
  EXPECT_NEAR(result.rollout_log_ppl, (2 + 1.25) / 2, 1e-12);
  EXPECT_NEAR(result.training_log_ppl, (2 - (kLn3 - kLn2) / 2 + 1.25 + kLn2 / 2) / 2, 1e-12);
  EXPECT_NEAR(result.rollout_ppl, (std::exp(2) + std::exp(1.25)) / 2, 1e-12);
  EXPECT_NEAR(result.training_ppl, (std::exp(2 - (kLn3 - kLn2) / 2) + std::exp(1.25 + kLn2 / 2)) / 2, 1e-12);
  EXPECT_NEAR(result.log_ppl_diff, (2 * kLn2 - kLn3) / 4, 1e-12);
  EXPECT_NEAR(result.log_ppl_abs_diff, kLn3 / 4, 1e-12);
  EXPECT_NEAR(result.log_ppl_diff_max, kLn2 / 2, 1e-12);
  EXPECT_NEAR(result.log_ppl_diff_min, -(kLn3 - kLn2) / 2, 1e-12);
  EXPECT_NEAR(result.ppl_ratio, (std::sqrt(2.0 / 3) + std::sqrt(2)) / 2, 1e-12);
  EXPECT_NEAR(result.chi2_token, (9 + 0.25 + 0.0625 + 4) / 4 - 1, 1e-12);
  EXPECT_NEAR(result.chi2_seq, (2.25 + 0.25) / 2 - 1, 1e-12);
}

}  // namespace
}  // namespace tdock::algo
