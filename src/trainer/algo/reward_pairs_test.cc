#include "trainer/algo/reward_pairs.h"

#include <gtest/gtest.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

using Ids = std::vector<int64_t>;

const std::vector<double> kChosen = {2.01, 0.23, 2.89, 0.66, 0.33, 2.25, 0.36, 0.99, 1.32, 1.62};
const std::vector<double> kRejected = {2.01, 0.23, 2.89, -0.5, 0.8, 0.1, 0.7, -0.2, 0.4, 0.05};

at::Tensor First(const std::vector<double>& values, int64_t count) { return Numbers(values).narrow(0, 0, count); }

struct Case {
  const char* name;
  Ids chosen, rejected;
  int64_t width;
  RewardPair pair;
  double loss, chosen_score, rejected_score;
};

const std::vector<Case> kCases = {
    {"answers that differ", {11, 22, 33, 44, 55, 66}, {11, 22, 33, 40, 50}, 10, {6, 5, 3, 6}, 0.446126, 2.25, 0.80},
    {"a first token that equals the padding",
     {2, 11, 22, 44, 55, 66},
     {2, 11, 22, 40, 50},
     10,
     {6, 5, 3, 6},
     0.446126,
     2.25,
     0.80},
    {"no padding", {11, 22, 33, 44, 55, 66}, {11, 22, 33, 40, 50, 60}, 6, {6, 6, 3, 6}, 0.446126, 2.25, 0.1},
    {"one the beginning of the other", {11, 22, 33, 44, 55}, {11, 22, 33, 44}, 8, {5, 4, 4, 5}, 0.955509, 0.33, -0.5},
};

TEST(RewardPairs, GiveTheNumbersOfDeepSpeedChat) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const RewardPair pair = ComparePair(one.chosen, one.rejected, one.width);
    EXPECT_EQ(pair.chosen_length, one.pair.chosen_length);
    EXPECT_EQ(pair.rejected_length, one.pair.rejected_length);
    EXPECT_EQ(pair.begin, one.pair.begin);
    EXPECT_EQ(pair.end, one.pair.end);
    const at::Tensor chosen = First(kChosen, one.width), rejected = First(kRejected, one.width);
    EXPECT_NEAR(PairLoss(chosen, rejected, pair).item<double>(), one.loss, 1e-6);
    EXPECT_NEAR(LastTokenScore(chosen, pair.chosen_length).item<double>(), one.chosen_score, 1e-12);
    EXPECT_NEAR(LastTokenScore(rejected, pair.rejected_length).item<double>(), one.rejected_score, 1e-12);
  }
}

TEST(RewardPairs, ThatAreEqualAreComparedAtTheirLastPlace) {
  const Ids both = {11, 22, 33, 44};
  const RewardPair pair = ComparePair(both, both, 10);
  EXPECT_EQ(pair.chosen_length, 4);
  EXPECT_EQ(pair.rejected_length, 4);
  EXPECT_EQ(pair.begin, 9);
  EXPECT_EQ(pair.end, 10);
  const at::Tensor values = First(kChosen, 10);
  const double loss = PairLoss(values, values, pair).item<double>();
  EXPECT_NEAR(loss, 0.693147, 1e-6);
  EXPECT_NEAR(LastTokenScore(values, 4).item<double>(), 0.66, 1e-12);
  const RewardPair other = ComparePair(kCases[0].chosen, kCases[0].rejected, 10);
  const double mean = (PairLoss(values, First(kRejected, 10), other).item<double>() + loss) / 2;
  EXPECT_NEAR(mean, 0.569636, 1e-6);
}

TEST(RewardPairs, ThatDoNotFitAreRefused) {
  EXPECT_THROW(ComparePair(Ids{1, 2}, Ids{1}, 1), c10::Error);
  EXPECT_THROW(ComparePair(Ids{}, Ids{1}, 4), c10::Error);
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1, 2}), {.begin = 1, .end = 3}), c10::Error);
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1, 2}), {.begin = 1, .end = 1}), c10::Error);
  EXPECT_THROW(PairLoss(Numbers({1, 2}), Numbers({1}), {.begin = 0, .end = 1}), c10::Error);
}

TEST(RewardPairs, HaveTheGradientsOfTheirLoss) {
  const RewardPair pair{.chosen_length = 6, .rejected_length = 5, .begin = 3, .end = 6};
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return PairLoss(x[0], x[1], pair); },
                             {First(kChosen, 10), First(kRejected, 10)}));
}

// Scoring of an answer behind a prompt of four places: its length is known, whatever tokens are around it.
TEST(LastTokenScore, IsTheValueOfTheLastToken) {
  const at::Tensor values = at::arange(1, 11).to(at::kDouble) / 10;
  EXPECT_NEAR(LastTokenScore(values, 4 + 3).item<double>(), 0.7, 1e-12);
  EXPECT_NEAR(LastTokenScore(values, 4 + 6).item<double>(), 1.0, 1e-12);
  EXPECT_THROW(LastTokenScore(values, 0), c10::Error);
  EXPECT_THROW(LastTokenScore(values, 11), c10::Error);
}

}  // namespace
}  // namespace tdock::algo
