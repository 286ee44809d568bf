#include "trainer/algo/reward_pairs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "trainer/algo/testing/gradient_check.h"

namespace tdock::algo {
namespace {

using Tokens = std::vector<int64_t>;

const std::vector<double> kChosen = {2.01, 0.23, 2.89, 0.66, 0.33, 2.25, 0.36, 0.99, 1.32, 1.62};
const std::vector<double> kRejected = {2.01, 0.23, 2.89, -0.5, 0.8, 0.1, 0.7, -0.2, 0.4, 0.05};

at::Tensor First(const std::vector<double>& values, size_t count) {
  return at::tensor(values, at::kDouble).narrow(0, 0, static_cast<int64_t>(count));
}

struct Case {
  const char* name;
  Tokens chosen, rejected;
  Padding padding;
  RewardPair pair;
  double loss, chosen_score, rejected_score;
};

const std::vector<Case> kCases = {
    {"answers that differ",
     {11, 22, 33, 44, 55, 66, 0, 0, 0, 0},
     {11, 22, 33, 40, 50, 0, 0, 0, 0, 0},
     {},
     {6, 5, 3, 6},
     0.446126,
     2.25,
     0.80},
    {"a padding at the beginning",
     {2, 11, 22, 44, 55, 66, 2, 2, 2, 2},
     {2, 11, 22, 40, 50, 2, 2, 2, 2, 2},
     {2, 1},
     {6, 5, 3, 6},
     0.446126,
     2.25,
     0.80},
    {"no padding", {11, 22, 33, 44, 55, 66}, {11, 22, 33, 40, 50, 60}, {}, {6, 6, 3, 6}, 0.446126, 2.25, 0.1},
    {"one the beginning of the other",
     {11, 22, 33, 44, 55, 0, 0, 0},
     {11, 22, 33, 44, 0, 0, 0, 0},
     {},
     {5, 4, 4, 5},
     0.955509,
     0.33,
     -0.5},
};

TEST(RewardPairs, GiveTheNumbersOfDeepSpeedChat) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const RewardPair pair = ComparePair(one.chosen, one.rejected, one.padding);
    EXPECT_EQ(pair.chosen_length, one.pair.chosen_length);
    EXPECT_EQ(pair.rejected_length, one.pair.rejected_length);
    EXPECT_EQ(pair.begin, one.pair.begin);
    EXPECT_EQ(pair.end, one.pair.end);
    const at::Tensor chosen = First(kChosen, one.chosen.size()), rejected = First(kRejected, one.chosen.size());
    EXPECT_NEAR(PairLoss(chosen, rejected, pair).item<double>(), one.loss, 1e-6);
    EXPECT_NEAR(LastTokenScore(chosen, pair.chosen_length).item<double>(), one.chosen_score, 1e-12);
    EXPECT_NEAR(LastTokenScore(rejected, pair.rejected_length).item<double>(), one.rejected_score, 1e-12);
  }
}

TEST(RewardPairs, ThatAreEqualAreComparedAtTheirLastPlace) {
  const Tokens both = {11, 22, 33, 44, 0, 0, 0, 0, 0, 0};
  const RewardPair pair = ComparePair(both, both, {});
  EXPECT_EQ(pair.chosen_length, 4);
  EXPECT_EQ(pair.rejected_length, 4);
  EXPECT_EQ(pair.begin, 9);
  EXPECT_EQ(pair.end, 10);
  const at::Tensor values = First(kChosen, 10);
  const double loss = PairLoss(values, values, pair).item<double>();
  EXPECT_NEAR(loss, 0.693147, 1e-6);
  EXPECT_NEAR(LastTokenScore(values, 4).item<double>(), 0.66, 1e-12);
  const RewardPair other = ComparePair(kCases[0].chosen, kCases[0].rejected, {});
  const double mean = (PairLoss(values, First(kRejected, 10), other).item<double>() + loss) / 2;
  EXPECT_NEAR(mean, 0.569636, 1e-6);
}

TEST(RewardPairs, WithAPaddingAtTheBeginningThatNobodyKnowsOfAreRefused) {
  EXPECT_THROW(ComparePair(kCases[1].chosen, kCases[1].rejected, {2, 0}), c10::Error);
  EXPECT_THROW(ComparePair(Tokens{1, 2}, Tokens{1}, {}), c10::Error);
  EXPECT_THROW(ComparePair(Tokens{}, Tokens{}, {}), c10::Error);
}

TEST(RewardPairs, HaveTheGradientsOfTheirLoss) {
  const RewardPair pair{.chosen_length = 6, .rejected_length = 5, .begin = 3, .end = 6};
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return PairLoss(x[0], x[1], pair); },
                             {First(kChosen, 10), First(kRejected, 10)}));
}

TEST(LastTokenScore, IsThatOfTheLastTokenBeforeThePadding) {
  const at::Tensor values = at::arange(1, 11).to(at::kDouble) / 10;
  const auto score = [&](const Tokens& answer) {
    Tokens tokens = {0, 0, 5, 6};  // a prompt behind its padding
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    return LastTokenScore(values, AnsweredLength(tokens, 4, 0)).item<double>();
  };
  EXPECT_NEAR(score({21, 22, 23, 0, 0, 0}), 0.7, 1e-12);
  EXPECT_NEAR(score({21, 22, 23, 24, 25, 26}), 1.0, 1e-12);
  EXPECT_THROW(LastTokenScore(values, 0), c10::Error);
  EXPECT_THROW(LastTokenScore(values, 11), c10::Error);
  EXPECT_THROW(AnsweredLength(Tokens{1, 2}, 3, 0), c10::Error);
}

}  // namespace
}  // namespace tdock::algo
