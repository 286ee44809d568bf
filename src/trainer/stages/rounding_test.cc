#include "trainer/stages/rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

class RoundedAtRandomTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, RoundedAtRandomTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(RoundedAtRandomTest, IsOneOfTheTwoNeighboursAndTheNumberItselfOnAverage) {
  constexpr int64_t kDraws = 100'003;
  constexpr double kGap = 1.0 / 128;  // of bfloat16 from 1 to 2
  for (const double share : {0.03, 0.5, 0.9}) {
    for (const double sign : {1.0, -1.0}) {
      for (const double scale : {1.0, 0x1.0p-100, 0x1.0p100}) {
        const double lower = sign * scale, upper = sign * scale * (1 + kGap);
        const double value = lower + share * (upper - lower);
        const at::Tensor values = at::full({kDraws}, value, GetParam());
        const at::Tensor rounded = RoundedAtRandom(values, 7).to(at::kDouble);
        const at::Tensor is_upper = rounded == upper;
        EXPECT_TRUE(is_upper.logical_or(rounded == lower).all().item<bool>()) << value;
        // Five deviations of the mean of so many.
        EXPECT_NEAR(is_upper.to(at::kDouble).mean().item<double>(), share, 5 * 0.5 / std::sqrt(kDraws)) << value;
      }
    }
  }
}

TEST_P(RoundedAtRandomTest, LeavesWhatBfloat16Has) {
  const at::Tensor values = at::tensor({0.0f, -0.0f, 1.0f, -2.5f, 0x1.0p-120f, 3.0e38f})
                                .to(at::kBFloat16)
                                .to(at::kFloat)
                                .repeat({1000})
                                .to(GetParam());
  EXPECT_TRUE(at::equal(RoundedAtRandom(values, 3), values));
}

TEST_P(RoundedAtRandomTest, FollowsFromTheSeedWhateverTheNumberOfThreads) {
  const at::Tensor values = at::linspace(-3, 3, 200'000, GetParam());
  const at::Tensor expected = RoundedAtRandom(values, 1);
  EXPECT_FALSE(at::equal(RoundedAtRandom(values, 2), expected));
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const at::Tensor with_more = RoundedAtRandom(values, 1);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(with_more, expected));
}

}  // namespace
}  // namespace tdock::trainer
