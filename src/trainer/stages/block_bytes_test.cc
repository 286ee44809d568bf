#include "trainer/stages/block_bytes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

using Range = BlockBytes::Range;

class BlockBytesTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, BlockBytesTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

at::Tensor RoundTrip(const at::Tensor& values, Range range) {
  BlockBytes bytes(values.numel(), range, values.device());
  bytes.Store(0, values);
  return bytes.Load(0, values.numel());
}

TEST_P(BlockBytesTest, IsZeroAtFirstAndTakesLittleMoreThanAByteANumber) {
  const BlockBytes bytes(1000, Range::kSigned, GetParam());
  EXPECT_EQ(bytes.bytes(), 1000 + 4 * 4);
  EXPECT_TRUE(at::equal(bytes.Load(512, 488).cpu(), at::zeros({488})));
}

TEST_P(BlockBytesTest, IsExactToAHundredthOfTheLargestAndKeepsThePowerOfTenOfSmallNumbers) {
  for (const Range range : {Range::kSigned, Range::kNotNegative}) {
    at::Tensor values = at::logspace(-5.9, 0, 600, 10.0, at::TensorOptions(GetParam()).dtype(at::kFloat)) * 40;
    values[599] = 40;
    values = at::cat({values.flip(0).narrow(0, 0, 256), values.narrow(0, 0, 200)});
    if (range == Range::kSigned) values = values * at::tensor({1.0f, -1.0f}).to(GetParam()).repeat({228});
    const at::Tensor stored = RoundTrip(values, range);
    const at::Tensor error = ((stored - values) / values).abs();
    EXPECT_LT((stored - values).abs().max().item<double>(), 0.01 * 40);
    EXPECT_LT(error.max().item<double>(), 1.0) << "a number has lost its sign or become zero";
  }
}

TEST_P(BlockBytesTest, BlocksDoNotChangeEachOther) {
  at::Tensor values = at::rand({700}, GetParam());
  const at::Tensor before = RoundTrip(values, Range::kSigned);
  values.narrow(0, 256, 256).mul_(1e6);
  const at::Tensor after = RoundTrip(values, Range::kSigned);
  EXPECT_TRUE(at::equal(before.narrow(0, 0, 256), after.narrow(0, 0, 256)));
  EXPECT_TRUE(at::equal(before.narrow(0, 512, 188), after.narrow(0, 512, 188)));
  BlockBytes bytes(700, Range::kSigned, GetParam());
  bytes.Store(0, values.narrow(0, 0, 512));
  bytes.Store(512, values.narrow(0, 512, 188));
  EXPECT_TRUE(at::equal(bytes.Load(256, 444), after.narrow(0, 256, 444))) << "stored in two parts";
}

TEST_P(BlockBytesTest, APositiveNumberNeverBecomesZero) {
  const at::Tensor values = at::tensor({1.0f, 1e-12f, 0.0f}).to(GetParam());
  const at::Tensor stored = RoundTrip(values, Range::kNotNegative).cpu();
  EXPECT_EQ(stored[0].item<float>(), 1.0f);
  EXPECT_GT(stored[1].item<float>(), 0.0f);
  EXPECT_EQ(stored[2].item<float>(), 0.0f);
}

TEST_P(BlockBytesTest, AtRandomEachNumberBecomesANeighbourAndOnAverageItself) {
  const at::Tensor values = at::linspace(0.001, 1, 700, GetParam());
  BlockBytes bytes(700, Range::kNotNegative, GetParam());
  constexpr int kDraws = 400;
  at::Tensor mean = at::zeros_like(values), largest = at::zeros_like(values);
  for (int i = 0; i < kDraws; ++i) {
    bytes.StoreAtRandom(0, values, (i + 0.5) / kDraws);
    const at::Tensor stored = bytes.Load(0, 700);
    mean += stored / kDraws;
    largest = at::maximum(largest, (stored - values).abs());
  }
  // Codes are less than a hundredth of the largest apart at most; of so many even draws the mean is exact to a 400th of
  // that.
  EXPECT_LT(largest.max().item<double>(), 0.015);
  EXPECT_GT(largest.max().item<double>(), 0.005) << "nothing was rounded to the farther neighbour";
  EXPECT_LT((mean - values).abs().max().item<double>(), 5e-5);
  BlockBytes with_signs(700, Range::kSigned, GetParam());
  EXPECT_THROW(with_signs.StoreAtRandom(0, values, 0.5), c10::Error);
}

TEST_P(BlockBytesTest, AtRandomAPositiveNumberNeverBecomesZeroAndWhatHasACodeStays) {
  const at::Tensor values = at::tensor({1.0f, 1e-12f, 0.0f, 1e-7f}).to(GetParam());
  BlockBytes bytes(4, Range::kNotNegative, GetParam());
  for (int i = 0; i < 20; ++i) {
    bytes.StoreAtRandom(0, values, i / 20.0);
    const at::Tensor stored = bytes.Load(0, 4).cpu();
    EXPECT_EQ(stored[0].item<float>(), 1.0f);
    EXPECT_GT(stored[1].item<float>(), 0.0f);
    EXPECT_EQ(stored[2].item<float>(), 0.0f);
    EXPECT_GT(stored[3].item<float>(), 0.0f);
  }
}

}  // namespace
}  // namespace tdock::trainer
