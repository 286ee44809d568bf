#include "trainer/stages/gradient_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace tdock::trainer {
namespace {

at::Tensor Number(double value, at::ScalarType dtype = at::kFloat) { return at::full({1}, value, dtype); }

TEST(GradientSum, AddsUpInTheOrderOfThePasses) {
  // In float32 the order shows: 1 is lost beside 1e8, but not once -1e8 is there.
  const std::vector<double> parts = {1e8, 1, -1e8, 1};
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    std::vector<std::pair<size_t, float>> done;
    GradientSum sum({5, 7}, parts.size(), [&](size_t unit, const std::vector<at::Tensor>& sums) {
      done.emplace_back(unit, sums.at(0).item<float>());
    });
    for (const size_t pass : order) {
      EXPECT_TRUE(done.empty());
      sum.Add(5, pass, {Number(parts[pass])});
    }
    EXPECT_EQ(done, (std::vector<std::pair<size_t, float>>{{5, 1.0F}}));
    for (const size_t pass : order) sum.Add(7, pass, {Number(1)});
    EXPECT_EQ(done.back(), (std::pair<size_t, float>(7, 4.0F)));
    EXPECT_TRUE(sum.Await(parts.size()));
  }
}

TEST(GradientSum, AddsUpInFloat32AtLeast) {
  at::Tensor half_sum, double_sum;
  constexpr size_t kPasses = 601;  // bfloat16 stops at 256
  GradientSum halves({0}, kPasses, [&](size_t, const std::vector<at::Tensor>& sums) { half_sum = sums[0]; });
  GradientSum doubles({0}, 1, [&](size_t, const std::vector<at::Tensor>& sums) { double_sum = sums[0]; });
  for (size_t pass = 0; pass < kPasses; ++pass) halves.Add(0, pass, {Number(1, at::kBFloat16)});
  doubles.Add(0, 0, {Number(1e-300, at::kDouble)});
  EXPECT_EQ(half_sum.item<float>(), kPasses);
  EXPECT_EQ(double_sum.item<double>(), 1e-300);
}

TEST(GradientSum, AwaitEndsOnceThePassesAreAddedUpOrOneFails) {
  GradientSum sum({0, 1}, 2, [](size_t, const std::vector<at::Tensor>&) {});
  EXPECT_TRUE(sum.Await(0));
  sum.Add(0, 0, {Number(1)});
  std::thread adds([&] { sum.Add(1, 0, {Number(1)}); });
  EXPECT_TRUE(sum.Await(1));
  adds.join();
  std::thread fails([&] { sum.Fail(); });
  EXPECT_FALSE(sum.Await(2));
  fails.join();
}

}  // namespace
}  // namespace tdock::trainer
