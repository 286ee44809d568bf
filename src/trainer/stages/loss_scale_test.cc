#include "trainer/stages/loss_scale.h"

#include <gtest/gtest.h>

namespace tdock::trainer {
namespace {

TEST(LossScale, DoublesAfterAnIntervalOfFiniteGradientsInARow) {
  LossScale scale({.initial = 8, .minimum = 1, .growth_interval = 3});
  for (const double expected : {8, 8, 16, 16, 16, 32}) {
    scale.Grow();
    EXPECT_EQ(scale.value(), expected);
  }
  scale.Grow();
  scale.Grow();
  ASSERT_TRUE(scale.BackOff());  // the row begins anew
  for (const double expected : {16, 16, 32}) {
    scale.Grow();
    EXPECT_EQ(scale.value(), expected);
  }
}

TEST(LossScale, IsHalvedDownToItsMinimumAndThenIsNotTheReason) {
  LossScale scale({.initial = 10, .minimum = 2, .growth_interval = 100});
  for (const double expected : {5.0, 2.5, 2.0}) {
    EXPECT_TRUE(scale.BackOff());
    EXPECT_EQ(scale.value(), expected);
  }
  EXPECT_FALSE(scale.BackOff());
  EXPECT_EQ(scale.value(), 2.0);
}

TEST(LossScale, GrowsTo16777216AtMost) {
  LossScale scale({.initial = 1 << 23, .minimum = 1, .growth_interval = 1});
  for (int i = 0; i < 4; ++i) scale.Grow();
  EXPECT_EQ(scale.value(), 16777216);
  LossScale larger({.initial = 1e9, .minimum = 1, .growth_interval = 1});
  larger.Grow();
  EXPECT_EQ(larger.value(), 1e9);
}

}  // namespace
}  // namespace tdock::trainer
