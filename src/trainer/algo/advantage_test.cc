#include "trainer/algo/advantage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "trainer/algo/testing/gradient_check.h"

namespace tdock::algo {
namespace {

at::Tensor Floats(const std::vector<float>& values) { return at::tensor(values); }
at::Tensor Groups(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

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
  const at::Tensor advantages = GrpoAdvantages(Floats({1, 2}), Groups({0, 0}));
  EXPECT_NEAR(advantages[0].item<double>(), -0.7071, 1e-4);
  EXPECT_NEAR(advantages[1].item<double>(), 0.7071, 1e-4);
}

TEST(GrpoAdvantages, DivideByTheUnbiasedDeviationPlusEpsilon) {
  // Mean 2.5, squared deviations 2.25 + .25 + .25 + 2.25 = 5, divided by 3.
  const double deviation = std::sqrt(5.0 / 3.0);
  const at::Tensor advantages = GrpoAdvantages(Floats({1, 2, 3, 4}), Groups({7, 7, 7, 7}), 0.5);
  const double expected[] = {-1.5, -0.5, 0.5, 1.5};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(advantages[i].item<double>(), expected[i] / (deviation + 0.5), 1e-7);
  }
}

TEST(GrpoAdvantages, DoNotDependOnTheOrderOrTheNumbersOfGroups) {
  const at::Tensor side_by_side = GrpoAdvantages(Floats({1, 2, 5, 9, 0, 0.5}), Groups({0, 0, 1, 1, 2, 2}));
  const at::Tensor mixed =
      GrpoAdvantages(Floats({9, 0, 1, 0.5, 5, 2}), Groups({-4, int64_t{1} << 60, 0, int64_t{1} << 60, -4, 0}));
  EXPECT_TRUE(at::equal(mixed, side_by_side.index_select(0, Groups({3, 4, 0, 5, 2, 1})))) << mixed << side_by_side;
}

TEST(GrpoAdvantages, OfAGroupOfOneAreItsRewards) {
  const at::Tensor advantages = GrpoAdvantages(Floats({3, 1, 2, -5}), Groups({0, 1, 1, 2}), 0.0);
  EXPECT_EQ(advantages[0].item<float>(), 3.0f);
  EXPECT_EQ(advantages[3].item<float>(), -5.0f);
}

TEST(GrpoAdvantages, AreExactlyZeroWhereAllRewardsOfAGroupAreEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const double reward : {0.0, 0.1, -1.0 / 3.0, 1e-30, 123456.789, 1e30}) {
      for (const int64_t n : {2, 3, 7, 8, 1000}) {
        const at::Tensor advantages =
            GrpoAdvantages(at::full({n}, reward, dtype), at::zeros({n}, at::kLong), /*epsilon=*/1e-6);
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
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor advantages = GrpoAdvantages(Floats({1, nan, 1, 2}), Groups({0, 0, 1, 1}));
  EXPECT_TRUE(std::isnan(advantages[0].item<float>()));
  EXPECT_NEAR(advantages[3].item<double>(), 0.7071, 1e-4);
}

TEST(GrpoAdvantages, HaveTheDTypeOfTheRewards) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor rewards = at::tensor({1.0, 2.0}).to(dtype);
    EXPECT_EQ(GrpoAdvantages(rewards, Groups({0, 0})).scalar_type(), dtype);
  }
  EXPECT_EQ(GrpoAdvantages(at::empty({0}), Groups({})).numel(), 0);
}

TEST(GrpoAdvantages, RefuseRewardsThatAreNoNumbersOfSamples) {
  EXPECT_THROW(GrpoAdvantages(at::ones({2}, at::kLong), Groups({0, 0})), c10::Error);
  EXPECT_THROW(GrpoAdvantages(at::ones({2, 1}), at::zeros({2, 1}, at::kLong)), c10::Error);
  EXPECT_THROW(GrpoAdvantages(at::ones({2}), Groups({0})), c10::Error);
}

TEST(GrpoAdvantages, HaveTheGradientsOfTheirFormula) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor groups = Groups({2, 0, 2, 1, 0, 2, 9});
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return GrpoAdvantages(x[0], groups, 1e-3); },
                             {at::randn({7}, generator, at::kDouble)}));
}

}  // namespace
}  // namespace tdock::algo
