#include "trainer/loop/speed.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

using testing::DoubleEq;
using testing::Pair;

TEST(Speed, FollowsFromTimesTokensAndOperations) {
  std::map<std::string, double> metrics = {
      {"timing_s/step", 8},        {"timing_s/rollout", 2},         {"timing_s/actor", 4},
      {"timing_s/testing", 3},     {"perf/total_num_tokens", 1000}, {"perf/num_generated_tokens", 500},
      {"perf/flops/rollout", 2e9}, {"perf/flops/actor", 6e9}};
  std::map<std::string, double> expected = metrics;
  expected["perf/time_per_step"] = 8;
  expected["perf/throughput"] = 125;
  expected["timing_per_token_ms/rollout"] = 4;
  expected["timing_per_token_ms/actor"] = 4;
  expected["perf/flops/step"] = 8e9;
  std::map<std::string, double> without_peak = metrics;
  AddSpeed(0, without_peak);
  EXPECT_EQ(without_peak, expected);
  expected["perf/mfu/rollout"] = 0.1;
  expected["perf/mfu/actor"] = 0.15;
  expected["perf/mfu/step"] = 0.1;
  AddSpeed(1e10, metrics);
  std::vector<testing::Matcher<std::pair<const std::string, double>>> matchers;
  for (const auto& [name, value] : expected) matchers.push_back(Pair(name, DoubleEq(value)));
  EXPECT_THAT(metrics, testing::ElementsAreArray(matchers));
}

TEST(Speed, IsUnknownWithoutAStep) {
  std::map<std::string, double> metrics = {{"timing_s/testing", 3}};
  AddSpeed(1e10, metrics);
  EXPECT_EQ(metrics.size(), 1u);
}

TEST(PeakFlops, AreThoseOfACore) {
  Workers one(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double flops = MeasurePeakFlops(one, dtype, at::kCPU, Clock::Real());
    EXPECT_GT(flops, 1e8) << dtype;
    EXPECT_LT(flops, 1e13) << dtype;
  }
}

TEST(PeakFlops, AreUnknownWhereTimeStandsStill) {
  Workers two(2);
  FakeClock clock;
  EXPECT_EQ(MeasurePeakFlops(two, at::kFloat, at::kCPU, clock), 0);
}

}  // namespace
}  // namespace tdock::trainer
