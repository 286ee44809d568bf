#include "trainer/algo/advantage.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "trainer/algo/kl.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

at::Tensor Floats(const std::vector<float>& values) { return at::tensor(values); }

// The formula in plain C++.
std::vector<double> ByLoop(const at::Tensor& rewards, const at::Tensor& groups, double epsilon) {
  std::map<int64_t, std::vector<double>> members;
  for (int64_t i = 0; i < rewards.numel(); ++i) {
    members[groups[i].item<int64_t>()].push_back(rewards[i].item<double>());
  }
  std::vector<double> advantages;
  for (int64_t i = 0; i < rewards.numel(); ++i) {
    const std::vector<double>& group = members[groups[i].item<int64_t>()];
    double mean = 0;
    double deviation = 1;
    if (group.size() > 1) {
      for (double r : group) mean += r / static_cast<double>(group.size());
      double squares = 0;
      for (double r : group) squares += (r - mean) * (r - mean);
      deviation = std::sqrt(squares / static_cast<double>(group.size() - 1));
    }
    advantages.push_back((rewards[i].item<double>() - mean) / (deviation + epsilon));
  }
  return advantages;
}

TEST(GrpoAdvantages, ArePlusAndMinusHalfTheRootOfTwoForTwoSamples) {
  const at::Tensor advantages = GrpoAdvantages(Floats({1, 2}), Integers({0, 0}));
  EXPECT_NEAR(advantages[0].item<double>(), -0.7071, 1e-4);
  EXPECT_NEAR(advantages[1].item<double>(), 0.7071, 1e-4);
}

TEST(GrpoAdvantages, DivideByTheUnbiasedDeviationPlusEpsilon) {
  // Mean 2.5, squared deviations 2.25 + .25 + .25 + 2.25 = 5, divided by 3.
  const double deviation = std::sqrt(5.0 / 3.0);
  const at::Tensor advantages = GrpoAdvantages(Floats({1, 2, 3, 4}), Integers({7, 7, 7, 7}), {.epsilon = 0.5});
  const double expected[] = {-1.5, -0.5, 0.5, 1.5};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(advantages[i].item<double>(), expected[i] / (deviation + 0.5), 1e-7);
  }
}

TEST(GrpoAdvantages, DoNotDependOnTheOrderOrTheNumbersOfGroups) {
  const at::Tensor side_by_side = GrpoAdvantages(Floats({1, 2, 5, 9, 0, 0.5}), Integers({0, 0, 1, 1, 2, 2}));
  const at::Tensor mixed =
      GrpoAdvantages(Floats({9, 0, 1, 0.5, 5, 2}), Integers({-4, int64_t{1} << 60, 0, int64_t{1} << 60, -4, 0}));
  EXPECT_TRUE(at::equal(mixed, side_by_side.index_select(0, Integers({3, 4, 0, 5, 2, 1})))) << mixed << side_by_side;
}

TEST(GrpoAdvantages, OfAGroupOfOneAreItsRewards) {
  const at::Tensor advantages = GrpoAdvantages(Floats({3, 1, 2, -5}), Integers({0, 1, 1, 2}), {.epsilon = 0});
  EXPECT_EQ(advantages[0].item<float>(), 3.0f);
  EXPECT_EQ(advantages[3].item<float>(), -5.0f);
}

TEST(GrpoAdvantages, AreExactlyZeroWhereAllRewardsOfAGroupAreEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const double reward : {0.0, 0.1, -1.0 / 3.0, 1e-30, 123456.789, 1e30}) {
      for (const int64_t n : {2, 3, 7, 8, 1000}) {
        const at::Tensor advantages = GrpoAdvantages(at::full({n}, reward, dtype), at::zeros({n}, at::kLong));
        EXPECT_EQ(advantages.count_nonzero().item<int64_t>(), 0) << reward << " × " << n << ": " << advantages;
      }
    }
  }
}

TEST(GrpoAdvantages, OfManyLargeGroupsAreThoseOfAPlainLoop) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3);
  // An offset far larger than the spread: the mean of squares minus the square of the mean would lose every digit.
  const at::Tensor rewards = at::randn({3000}, generator, at::kDouble) + 1e5;
  const at::Tensor groups = at::randint(0, 5, {3000}, generator, at::kLong);
  const std::vector<double> expected = ByLoop(rewards, groups, 1e-6);
  const at::Tensor advantages = GrpoAdvantages(rewards, groups);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(advantages.const_data_ptr<double>()[i], expected[i], 1e-7) << i;
  }
}

TEST(GrpoAdvantages, KeepAFailedRewardWithinItsGroup) {
  const at::Tensor advantages = GrpoAdvantages(Numbers({1, kNan, 1, 2}), Integers({0, 0, 1, 1}));
  EXPECT_TRUE(std::isnan(advantages[0].item<double>()));
  EXPECT_NEAR(advantages[3].item<double>(), 0.7071, 1e-4);
}

TEST(GrpoAdvantages, HaveTheDTypeOfTheRewards) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor rewards = at::tensor({1.0, 2.0}).to(dtype);
    EXPECT_EQ(GrpoAdvantages(rewards, Integers({0, 0})).scalar_type(), dtype);
  }
  EXPECT_EQ(GrpoAdvantages(at::empty({0}), Integers({})).numel(), 0);
}

TEST(GrpoAdvantages, RefuseRewardsThatAreNoNumbersOfSamples) {
  EXPECT_THROW(GrpoAdvantages(at::ones({2}, at::kLong), Integers({0, 0})), c10::Error);
  EXPECT_THROW(GrpoAdvantages(at::ones({2, 1}), at::zeros({2, 1}, at::kLong)), c10::Error);
  EXPECT_THROW(GrpoAdvantages(at::ones({2}), Integers({0})), c10::Error);
}

TEST(GrpoAdvantages, AreConstants) {
  const at::Tensor rewards = Numbers({1, 2}).set_requires_grad(true);
  EXPECT_FALSE(GrpoAdvantages(rewards, Integers({0, 0})).requires_grad());
}

// Three prompts: four samples that differ, one sample alone, and two that are equal.
const at::Tensor& SevenRewards() {
  static const at::Tensor rewards = Numbers({1, 0, 3, 4, 5, 2, 2});
  return rewards;
}
at::Tensor SevenGroups() { return Integers({8, 8, 8, 8, 3, 4, 4}); }

TEST(DrGrpoAdvantages, AreTheDifferenceFromTheMean) {
  EXPECT_TRUE(Near(GrpoAdvantages(SevenRewards(), SevenGroups(), {.divide_by_deviation = false}),
                   {-1, -2, 1, 2, 5, 0, 0}, 1e-12));
}

TEST(RlooAdvantages, AreTheDifferenceFromTheMeanOfTheOthers) {
  EXPECT_TRUE(Near(RlooAdvantages(SevenRewards(), SevenGroups()),
                   {1 - 7.0 / 3, 0 - 8.0 / 3, 3 - 5.0 / 3, 4 - 4.0 / 3, 5, 0, 0}, 1e-12));
}

TEST(PassAtKAdvantages, GiveTheBestItsLeadOverTheSecond) {
  const at::Tensor rewards = Numbers({1, 0, 3, 5, 2, 2, -3, -7}), groups = Integers({8, 8, 8, 8, 4, 4, 1, 1});
  EXPECT_TRUE(Near(PassAtKAdvantages(rewards, groups), {0, 0, 0, 2, 0, 0, 4, 0}, 1e-12));
  const double deviation = std::sqrt((1.25 * 1.25 + 2.25 * 2.25 + 0.75 * 0.75 + 2.75 * 2.75) / 3);
  EXPECT_TRUE(Near(PassAtKAdvantages(rewards, groups, {.divide_by_deviation = true, .epsilon = 0.5}),
                   {0, 0, 0, 2 / (deviation + 0.5), 0, 0, 4 / (std::sqrt(8) + 0.5), 0}, 1e-12));
}

TEST(PassAtKAdvantages, RefuseAGroupOfOneByName) {
  EXPECT_THAT(ErrorOf([] { PassAtKAdvantages(SevenRewards(), SevenGroups()); }), Mentions({"group 3"}));
}

TEST(OpoAdvantages, AreTheDifferenceFromTheMeanByLength) {
  const at::Tensor lengths = Integers({1, 2, 3, 4, 9, 1, 7});
  const double baseline = (1 * 1 + 3 * 3 + 4 * 4) / 10.0;
  EXPECT_TRUE(Near(OpoAdvantages(SevenRewards(), SevenGroups(), lengths),
                   {1 - baseline, -baseline, 3 - baseline, 4 - baseline, 5, 0, 0}, 1e-12));
  EXPECT_THAT(ErrorOf([] {
                OpoAdvantages(SevenRewards(), SevenGroups(), Integers({1, 1, 1, 1, 1, 0, 0}));
              }),
              Mentions({"group 4"}));
  EXPECT_THROW(OpoAdvantages(SevenRewards(), SevenGroups(), Integers({1})), c10::Error);
}

TEST(GpgAdvantages, AreScaledUpForTheSamplesWithoutAGradient) {
  // Of 7 samples, 4 are of a group that differs, and one is alone and keeps its reward; 6 rewards are not 0.
  const double by_group = 7.0 / 5, by_reward = 7.0 / 6;
  EXPECT_TRUE(Near(GpgAdvantages(SevenRewards(), SevenGroups()),
                   {-by_group, -2 * by_group, by_group, 2 * by_group, 5 * by_group, 0, 0}, 1e-12));
  EXPECT_TRUE(Near(GpgAdvantages(SevenRewards(), SevenGroups(), GpgScale::kRewardsNotZero),
                   {-by_reward, -2 * by_reward, by_reward, 2 * by_reward, 5 * by_reward, 0, 0}, 1e-12));
  EXPECT_TRUE(Near(GpgAdvantages(Numbers({0, 0}), Integers({1, 1})), {0, 0}, 0));
}

TEST(Advantages, OfEqualRewardsAreExactlyZero) {
  for (const double reward : {0.1, -1.0 / 3.0, 1e30}) {
    const at::Tensor rewards = at::full({7}, reward, at::kDouble), groups = at::zeros({7}, at::kLong);
    for (const at::Tensor& advantages :
         {GrpoAdvantages(rewards, groups, {.divide_by_deviation = false}), RlooAdvantages(rewards, groups),
          PassAtKAdvantages(rewards, groups), OpoAdvantages(rewards, groups, Integers({1, 2, 3, 4, 5, 6, 7})),
          GpgAdvantages(rewards, groups),
          ReinforcePlusPlusBaselineAdvantages(rewards, groups, All({1, 1, 1, 1, 1, 1, 2}))}) {
      EXPECT_EQ(advantages.count_nonzero().item<int64_t>(), 0) << advantages;
    }
  }
}

TEST(Advantages, OfARewardThatIsNotFiniteAreNanInItsGroupOnly) {
  const at::Tensor groups = Integers({8, 8, 8, 3, 3});
  const GrpoOptions plain{.divide_by_deviation = false};
  const auto all = [&](const at::Tensor& rewards) {
    return std::vector<at::Tensor>{
        GrpoAdvantages(rewards, groups),    GrpoAdvantages(rewards, groups, plain),
        PassAtKAdvantages(rewards, groups), PassAtKAdvantages(rewards, groups, {.divide_by_deviation = true}),
        RlooAdvantages(rewards, groups),    OpoAdvantages(rewards, groups, Integers({1, 2, 3, 4, 5})),
        GpgAdvantages(rewards, groups),     GpgAdvantages(rewards, groups, GpgScale::kRewardsNotZero)};
  };
  const std::vector<at::Tensor> expected = all(Numbers({1, 5, 2, 4, 3}));
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    const std::vector<at::Tensor> given = all(Numbers({1, bad, 2, 4, 3}));
    for (size_t i = 0; i < given.size(); ++i) {
      EXPECT_TRUE(given[i].narrow(0, 0, 3).isnan().all().item<bool>()) << i << ": " << given[i];
      EXPECT_TRUE(at::equal(given[i].narrow(0, 3, 2), expected[i].narrow(0, 3, 2))) << i << ": " << given[i];
    }
    EXPECT_THAT(ErrorOf([&] {
                  ReinforcePlusPlusBaselineAdvantages(Numbers({1, bad, 2, 4, 3}), groups, All({1, 1, 1, 1, 1}));
                }),
                Mentions({"token 0", "sample 0", "nan"}));
  }
}

TEST(ReinforcePlusPlusBaselineAdvantages, AreWhitenedOverAllTokens) {
  // r − μ is ∓1, and three tokens count: −1, −1, 1.
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0, 1}), std::vector<int64_t>{3, 1});
  const double mean = -1.0 / 3;
  const double deviation = std::sqrt((2 * std::pow(-1 - mean, 2) + std::pow(1 - mean, 2)) / 2);
  EXPECT_TRUE(Near(ReinforcePlusPlusBaselineAdvantages(Numbers({0, 2}), Integers({5, 5}), tokens),
                   {(-1 - mean) / deviation, (-1 - mean) / deviation, 0, (1 - mean) / deviation}, 1e-7));
}

TEST(ReturnsToGo, AreDiscountedWithinASequenceAndPassOverMaskedTokens) {
  const Tokens tokens = MakeTokens(Numbers({1, 0, 1, 1, 1}), std::vector<int64_t>{3, 2});
  EXPECT_TRUE(Near(ReturnsToGo(Numbers({1, kNan, 2, 4, 8}), tokens, 0.5), {2, 0, 2, 8, 8}, 1e-12));
}

TEST(ReinforcePlusPlusAdvantages, AreTheWhitenedReturnsToGo) {
  const TokenAdvantages result = ReinforcePlusPlusAdvantages(Numbers({0, 0, 3, 1}), All({3, 1}), 0.5);
  EXPECT_TRUE(Near(result.returns, {0.75, 1.5, 3, 1}, 1e-12));
  EXPECT_TRUE(at::allclose(result.advantages, Whiten(result.returns, All({3, 1}))));
  EXPECT_NEAR(result.advantages.mean().item<double>(), 0, 1e-12);
}

TEST(RemaxAdvantages, AreTheReturnsLessThoseOfTheGreedyAnswer) {
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0, 1}), std::vector<int64_t>{3, 1});
  const TokenAdvantages result = RemaxAdvantages(Numbers({0.5, 2, 0, 1}), Numbers({1, 3}), tokens);
  EXPECT_TRUE(Near(result.returns, {2.5, 2, 0, 1}, 1e-12));
  EXPECT_TRUE(Near(result.advantages, {1.5, 1, 0, -2}, 1e-12));
}

// DeepSpeed-Chat: values and rewards of an answer of four tokens.
TEST(GaeAdvantages, GiveThePublishedNumbers) {
  const TokenAdvantages result =
      GaeAdvantages(Numbers({-5.5084e-03, -4.0741e-03, -5.5275e-03, -8.5999e-02}),
                    Numbers({-0.0919, -0.0867, -0.0818, -0.0758}), All({4}), {.gamma = 0.9, .lambda = 0.95});
  EXPECT_TRUE(Near(result.advantages, {0.015573579, 0.008435064, -0.000667645, -0.010199}, 1e-9));
  EXPECT_TRUE(Near(result.returns, {-0.076326421, -0.078264936, -0.082467645, -0.085999}, 1e-9));
}

// MindSpeed-RL: γ = 0 and whitened.
TEST(GaeAdvantages, AreWhitenedWhereAsked) {
  const TokenAdvantages result =
      GaeAdvantages(Numbers({1, 2, 3}), Numbers({0.5, 1, 1.5}), All({3}), {.gamma = 0, .whiten = true});
  EXPECT_TRUE(Near(result.advantages, {-1, 0, 1}, 1e-7));
  EXPECT_TRUE(Near(result.returns, {1, 2, 3}, 1e-12));
}

// DeepSpeed-Chat's end-to-end cases: rewards with a KL penalty and a clipped score, then advantages.
TEST(GaeAdvantages, OfPenalisedRewardsGiveThePublishedNumbers) {
  const at::Tensor log_probs = Numbers({-1, -2, -0.5, -1.5, -0.3}), ref = Numbers({-1.2, -1.5, -0.5, -2.5, -0.1});
  const at::Tensor values = Numbers({0.1, 0.2, 0.3, 0.4, 0.7});
  const auto run = [&](double score, const Tokens& tokens) {
    const at::Tensor rewards = TokenRewards(Numbers({score}), log_probs, ref, tokens, {.coef = 0.1, .score_clip = 5});
    return std::pair(rewards, GaeAdvantages(rewards, values, tokens));
  };
  const auto first = run(7.5, MakeTokens(Numbers({1, 1, 1, 1, 0}), std::vector<int64_t>{5}));
  EXPECT_TRUE(Near(first.first, {-0.02, 0.05, 0, 4.9, 0}, 1e-12));
  EXPECT_TRUE(Near(first.second.advantages, {4.170937, 4.30625, 4.375, 4.5, 0}, 1e-6));
  EXPECT_TRUE(Near(first.second.returns, {4.270937, 4.50625, 4.675, 4.9, 0}, 1e-6));
  const auto second = run(-1.25, All({5}));
  EXPECT_NEAR(second.first[4].item<double>(), -1.23, 1e-12);
  EXPECT_TRUE(Near(second.second.advantages, {-1.087772, -1.229234, -1.451825, -1.6335, -1.93}, 1e-6));
}

TEST(GaeAdvantages, KeepSequencesApartAndPassOverMaskedTokens) {
  const GaeOptions options{.gamma = 0.9, .lambda = 0.8};
  const Tokens tokens = MakeTokens(Numbers({1, 0, 1, 1, 1}), std::vector<int64_t>{3, 2});
  const TokenAdvantages both =
      GaeAdvantages(Numbers({1, kNan, 2, 3, 4}), Numbers({0.1, kInfinity, 0.2, 0.3, 0.4}), tokens, options);
  const TokenAdvantages first = GaeAdvantages(Numbers({1, 2}), Numbers({0.1, 0.2}), All({2}), options);
  const TokenAdvantages second = GaeAdvantages(Numbers({3, 4}), Numbers({0.3, 0.4}), All({2}), options);
  const auto number = [](const at::Tensor& x, int64_t i) { return x[i].item<double>(); };
  EXPECT_TRUE(Near(both.advantages,
                   {number(first.advantages, 0), 0, number(first.advantages, 1), number(second.advantages, 0),
                    number(second.advantages, 1)},
                   1e-12));
}

TEST(TokenAdvantages, OfTokensThatAreNotNumbersAreRefused) {
  const auto error = [](const at::Tensor& rewards, const at::Tensor& values) {
    return ErrorOf([&] { GaeAdvantages(rewards, values, All({1, 2})); });
  };
  const at::Tensor zeros = at::zeros({3}, at::kDouble);
  EXPECT_THAT(error(Numbers({0, 0, kNan}), zeros), Mentions({"rewards", "token 1", "sample 1", "nan"}));
  EXPECT_THAT(error(zeros, Numbers({-kInfinity, 0, 0})), Mentions({"values", "token 0", "sample 0", "-inf"}));
  EXPECT_THAT(error(zeros, at::zeros({2})), Mentions({"values", "[2]", "[3]"}));
  EXPECT_THAT(ErrorOf([&] { ReturnsToGo(zeros, {.mask = zeros}); }), Mentions({"Tokens::sequence"}));
}

}  // namespace
}  // namespace tdock::algo
