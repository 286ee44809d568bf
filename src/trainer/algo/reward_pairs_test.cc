#include "trainer/algo/reward_pairs.h"

#include <gtest/gtest.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

const std::vector<double> kChosen = {2.01, 0.23, 2.89, 0.66, 0.33, 2.25, 0.36, 0.99, 1.32, 1.62};
const std::vector<double> kRejected = {2.01, 0.23, 2.89, -0.5, 0.8, 0.1, 0.7, -0.2, 0.4, 0.05};

at::Tensor First(const std::vector<double>& values, int64_t count) { return Numbers(values).narrow(0, 0, count); }

double Loss(int64_t width, const RewardPair& pair) {
  return PairLoss(First(kChosen, width), First(kRejected, width), pair).item<double>();
}

TEST(PairLoss, GivesTheNumbersOfDeepSpeedChat) {
  EXPECT_NEAR(Loss(10, {.begin = 3, .end = 6}), 0.446126, 1e-6);
  EXPECT_NEAR(Loss(6, {.begin = 3, .end = 6}), 0.446126, 1e-6);  // no padding
  EXPECT_NEAR(Loss(8, {.begin = 4, .end = 5}), 0.955509, 1e-6);  // one is the beginning of the other
}

TEST(PairLoss, OfEqualValuesIsTheLogarithmOfTwo) {
  const at::Tensor values = First(kChosen, 10);
  EXPECT_NEAR(PairLoss(values, values, {.begin = 9, .end = 10}).item<double>(), 0.693147, 1e-6);
}

TEST(PairLoss, RefusesASpanThatDoesNotFit) {
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1, 2}), {.begin = 1, .end = 3}), c10::Error);
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1, 2}), {.begin = 1, .end = 1}), c10::Error);
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1}), {.begin = 0, .end = 1}), c10::Error);
}

TEST(PairLoss, HasTheGradientsOfItsFormula) {
  const RewardPair pair{.begin = 3, .end = 6};
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return PairLoss(x[0], x[1], pair); },
                             {First(kChosen, 10), First(kRejected, 10)}));
}

}  // namespace
}  // namespace tdock::algo
