#include "trainer/algo/kl.h"

#include <gmock/gmock.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

constexpr KlEstimator kAll[] = {KlEstimator::kK1, KlEstimator::kAbs, KlEstimator::kK2, KlEstimator::kK3,
                                KlEstimator::kK3Plus};

void ExpectKl(KlEstimator estimator, double first, double second) {
  const at::Tensor kl = KlDivergence(at::tensor({0.5, 1.0}), at::tensor({1.0, 0.5}), estimator);
  EXPECT_NEAR(kl[0].item<double>(), first, 5e-6);
  EXPECT_NEAR(kl[1].item<double>(), second, 5e-6);
}

TEST(KlDivergence, GivesThePublishedNumbers) {
  ExpectKl(KlEstimator::kK1, -0.5, 0.5);
  ExpectKl(KlEstimator::kAbs, 0.5, 0.5);
  ExpectKl(KlEstimator::kK2, 0.125, 0.125);
  ExpectKl(KlEstimator::kK3, 0.14872, 0.10653);
  ExpectKl(KlEstimator::kK3Plus, 0.14872, 0.10653);
}

TEST(KlDivergence, IsZeroForEqualPolicies) {
  const at::Tensor log_probs = at::tensor({-1e-3, -0.5, -80.0});
  for (const KlEstimator estimator : kAll) {
    EXPECT_EQ(KlDivergence(log_probs, log_probs, estimator).count_nonzero().item<int64_t>(), 0);
  }
}

TEST(KlDivergence, OfK3IsNeverNegative) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const double scale : {1e-8, 1e-4, 1.0, 10.0}) {
      const at::Tensor log_probs = at::randn({20'000}, generator, dtype) * scale;
      const at::Tensor ref = at::randn({20'000}, generator, dtype) * scale;
      const at::Tensor kl = KlDivergence(log_probs, ref, KlEstimator::kK3);
      EXPECT_GE(kl.min().item<double>(), 0.0) << "scale " << scale;
    }
  }
}

TEST(KlDivergence, OfK3KeepsItsDigitsForSmallDifferences) {
  // eˣ − x − 1 = x²/2 + x³/6 + …: at x = 1e-3, float32's exp leaves no correct digit.
  const at::Tensor x = at::tensor(std::vector<float>{1e-3f, -1e-3f});
  const at::Tensor kl = KlDivergence(at::zeros({2}), x, KlEstimator::kK3);
  EXPECT_NEAR(kl[0].item<double>(), 5.001667e-7, 6e-11);
  EXPECT_NEAR(kl[1].item<double>(), 4.998334e-7, 6e-11);
}

// E over samples of the policy of k1 and k3 is the divergence itself; k2 is off by terms of third order.
TEST(KlDivergence, AveragesToTheDivergenceOfTheDistributions) {
  const at::Tensor p = at::log_softmax(at::tensor({0.3, -1.0, 2.0, 0.0}), -1);
  const at::Tensor q = at::log_softmax(at::tensor({0.1, -0.8, 1.7, 0.4}), -1);
  const double exact = (p.exp() * (p - q)).sum().item<double>();
  const auto mean = [&](KlEstimator e) { return (p.exp() * KlDivergence(p, q, e)).sum().item<double>(); };
  EXPECT_NEAR(mean(KlEstimator::kK1), exact, 1e-12);
  EXPECT_NEAR(mean(KlEstimator::kK3), exact, 1e-12);
  EXPECT_NEAR(mean(KlEstimator::kK2), exact, 0.2 * exact);
}

TEST(KlDivergence, HasTheGradientsOfItsFormulaInBothArguments) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(2);
  const at::Tensor log_probs = at::randn({3, 5}, generator, at::kDouble);
  const at::Tensor ref = log_probs + at::randn({3, 5}, generator, at::kDouble).sign() *
                                         (at::rand({3, 5}, generator, at::kDouble) + 0.01);  // away from abs's corner
  for (const KlEstimator estimator : {KlEstimator::kK1, KlEstimator::kAbs, KlEstimator::kK2, KlEstimator::kK3}) {
    EXPECT_TRUE(GradientsMatch([&](const auto& x) { return KlDivergence(x[0], x[1], estimator); }, {log_probs, ref}))
        << "estimator " << static_cast<int>(estimator);
  }
}

TEST(KlDivergence, OfK3PlusHasTheValueOfK3AndTheGradientOfK2) {
  const at::Tensor ref = Normal(9, 2);
  const at::Tensor log_probs = (ref + Normal(9, 3)).set_requires_grad(true);
  const at::Tensor kl = KlDivergence(log_probs, ref, KlEstimator::kK3Plus);
  EXPECT_TRUE(at::equal(kl, KlDivergence(log_probs, ref, KlEstimator::kK3)));
  EXPECT_TRUE(at::allclose(torch::autograd::grad({kl.sum()}, {log_probs})[0], log_probs - ref));
}

TEST(TokenRewards, GiveTheScoreToTheLastTokenThatCountsAndThePenaltyToAll) {
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0, 1, 0}), std::vector<int64_t>{3, 2});
  const at::Tensor log_probs = Numbers({-1, -2, kNan, -3, 0}), ref = Numbers({-2, -2.5, 0, -1, -kInfinity});
  EXPECT_TRUE(Near(TokenRewards(Numbers({4, -9}), log_probs, ref, tokens, {.coef = 0.1, .score_clip = 5}),
                   {-0.1, -0.05 + 4, 0, 0.2 - 5, 0}, 1e-12));
  EXPECT_TRUE(Near(TokenRewards(Numbers({4, -9}), log_probs, ref, tokens, {.coef = 0.1, .estimator = KlEstimator::kK2}),
                   {-0.05, -0.0125 + 4, 0, -0.2 - 9, 0}, 1e-12));
  EXPECT_TRUE(Near(TokenRewards(Numbers({4, -9}), {}, {}, tokens), {0, 4, 0, -9, 0}, 0));
}

TEST(TokenRewards, RefuseAScoreThatNoTokenCanHave) {
  const Tokens tokens = MakeTokens(Numbers({1, 0, 0}), std::vector<int64_t>{1, 2});
  EXPECT_THAT(ErrorOf([&] { TokenRewards(Numbers({1, 2}), {}, {}, tokens); }), Mentions({"no token", "sample 1"}));
  EXPECT_THAT(ErrorOf([&] { TokenRewards(Numbers({1}), {}, {}, tokens); }), Mentions({"scores", "[1]", "2 samples"}));
  EXPECT_THAT(ErrorOf([&] { TokenRewards(Numbers({1}), Numbers({0}), Numbers({-kInfinity}), All({1}), {.coef = 1}); }),
              Mentions({"reference", "token 0", "sample 0", "-inf"}));
}

TEST(TokenRewards, NameTheSampleWhoseScoreIsNotFinite) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    EXPECT_THAT(ErrorOf([&] {
                  TokenRewards(Numbers({1, bad}), {}, {}, All({1, 2}), {.score_clip = 5});
                }),
                Mentions({"scores", "sample 1"}));
  }
}

TEST(AdaptedKlCoef, StaysPositiveOrIsRefused) {
  const KlTarget target{.kl = 0.1, .horizon = 100};
  EXPECT_GT(AdaptedKlCoef(1.0, 0.0, 499, target), 0);
  EXPECT_THAT(ErrorOf([&] { AdaptedKlCoef(1.0, 0.0, 501, target); }), Mentions({"horizon of 100", "501 samples"}));
}

TEST(AdaptedKlCoef, GivesThePublishedNumbers) {
  const KlTarget target{.kl = 0.1, .horizon = 100};
  EXPECT_NEAR(AdaptedKlCoef(1.0, 0.2, 50, target), 1.1, 1e-12);
  EXPECT_NEAR(AdaptedKlCoef(1.0, 0.05, 50, target), 0.9, 1e-12);
  EXPECT_NEAR(AdaptedKlCoef(2.0, 0.11, 50, target), 2.1, 1e-12);
  EXPECT_EQ(AdaptedKlCoef(2.0, 0.1, 50, target), 2.0);
}

TEST(AdaptedKlCoef, RefusesWhatItCannotSteerTo) {
  EXPECT_THROW(AdaptedKlCoef(1, 0.1, 1, {.kl = 0}), c10::Error);
  EXPECT_THROW(AdaptedKlCoef(1, 0.1, 1, {.horizon = 0}), c10::Error);
  EXPECT_THROW(AdaptedKlCoef(1, kNan, 1, {}), c10::Error);
}

TEST(KlDivergence, RefusesToBroadcast) {
  EXPECT_THROW(KlDivergence(at::zeros({3}), at::zeros({1}), KlEstimator::kK1), c10::Error);
}

}  // namespace
}  // namespace tdock::algo
