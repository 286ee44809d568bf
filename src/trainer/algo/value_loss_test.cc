#include "trainer/algo/value_loss.h"

#include <gmock/gmock.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

double CriticLoss(const at::Tensor& values, const at::Tensor& old_values, const at::Tensor& returns,
                  const at::Tensor& mask) {
  const Tokens tokens{.mask = mask};
  return ComputeValueLoss(values, old_values, returns, tokens, CountsOf(tokens)).loss.item<double>();
}

// DeepSpeed-Chat's end-to-end cases: old values and returns of an answer of five tokens.
TEST(ValueLoss, GivesThePublishedCriticLosses) {
  const at::Tensor values = Numbers({0.5, 0.3, -0.1, 0.6, 0.7});
  const at::Tensor first_old = Numbers({0.1, 0.2, 0.3, 0.4, 0}), first_mask = Numbers({1, 1, 1, 0, 0});
  const at::Tensor first_returns = Numbers({4.270937, 4.50625, 4.675, 4.9, 0});
  EXPECT_NEAR(CriticLoss(values, first_old, first_returns, first_mask), 9.376918, 2e-6);
  EXPECT_NEAR(CriticLoss(first_old, first_old, first_returns, first_mask), 9.180189, 2e-6);
  const at::Tensor second_old = Numbers({0.1, 0.2, 0.3, 0.4, 0.7});
  const at::Tensor second_returns = second_old + Numbers({-1.087772, -1.229234, -1.451825, -1.6335, -1.93});
  EXPECT_NEAR(CriticLoss(values, second_old, second_returns, at::ones({5}, at::kDouble)), 1.263402, 2e-6);
}

TEST(ValueLoss, IsHalfTheLargerSquareAndHasNoGradientWhereThatIsTheClippedOne) {
  const at::Tensor values = Numbers({1.1, 1.5, 1.5, kNan}).set_requires_grad(true);
  const Tokens tokens{.mask = Numbers({1, 1, 1, 0})};
  const ValueLoss loss = ComputeValueLoss(values, at::ones({4}, at::kDouble), Numbers({3, 3, 0, kInfinity}), tokens,
                                          CountsOf(tokens), {.clip = 0.2});
  EXPECT_TRUE(Near(loss.per_token.detach(), {1.9 * 1.9 / 2, 1.8 * 1.8 / 2, 1.5 * 1.5 / 2, 0}, 1e-12));
  EXPECT_TRUE(at::equal(loss.clipped, Integers({0, 1, 0, 0}) != 0));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.loss}, {values})[0], {-1.9 / 3, 0, 1.5 / 3, 0}, 1e-12));
}

TEST(ValueLoss, HasTheGradientsOfItsFormula) {
  const at::Tensor old = Normal(50, 1), returns = Normal(50, 2);
  const Tokens tokens = All({20, 30});
  for (const double clip : {0.0, 0.3}) {
    const auto loss = [&](const std::vector<at::Tensor>& x) {
      return ComputeValueLoss(x[0], old, returns, tokens, CountsOf(tokens), {clip, {Aggregation::kSeqMeanTokenMean}})
          .loss;
    };
    EXPECT_TRUE(GradientsMatch(loss, {old + 0.4 * Normal(50, 3)})) << clip;
  }
}

TEST(ValueLoss, RefusesInputsThatAreNotNumbersOfTheTokens) {
  const at::Tensor two = at::zeros({2}, at::kDouble);
  const auto error = [&](const at::Tensor& values, const at::Tensor& old, const at::Tensor& returns) {
    return ErrorOf([&] { ComputeValueLoss(values, old, returns, All({2}), {.tokens = 2}); });
  };
  EXPECT_THAT(error(Numbers({0, kNan}), two, two), Mentions({"values", "token 1", "nan"}));
  EXPECT_THAT(error(two, at::zeros({3}), two), Mentions({"old values", "[3]", "[2]"}));
  EXPECT_THAT(error(two, two, Numbers({kInfinity, 0})), Mentions({"returns", "token 0", "inf"}));
}

}  // namespace
}  // namespace tdock::algo
