#include "trainer/algo/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tdock::algo {
namespace {

// Ten steps of warm-up, and a hundred after it.
LrSchedule ScheduleOf(LrDecay decay, double floor = 0) {
  return {.decay = decay, .warmup_steps = 10, .total_steps = 110, .floor = floor};
}

TEST(LrSchedule, RisesThenFallsToItsFloor) {
  const LrSchedule linear{LrDecay::kLinear, 20, 200, 0.1};
  EXPECT_DOUBLE_EQ(linear.Factor(0), 0.05);
  EXPECT_DOUBLE_EQ(linear.Factor(19), 1.0);
  EXPECT_DOUBLE_EQ(linear.Factor(20), 1.0);
  EXPECT_DOUBLE_EQ(linear.Factor(110), 0.55);
  EXPECT_DOUBLE_EQ(linear.Factor(200), 0.1);
  EXPECT_DOUBLE_EQ(linear.Factor(1000), 0.1);
  // Published values of the cosine schedule with 100 warm-up steps of 1000, counted there from one step earlier.
  const LrSchedule cosine{LrDecay::kCosine, 100, 1000, 0.0};
  EXPECT_NEAR(cosine.Factor(49), 0.5, 1e-12);
  EXPECT_NEAR(cosine.Factor(99), 1.0, 1e-12);
  EXPECT_NEAR(cosine.Factor(325), 0.853553, 1e-6);
  EXPECT_NEAR(cosine.Factor(550), 0.5, 1e-12);
  EXPECT_NEAR(cosine.Factor(1000), 0.0, 1e-12);
  EXPECT_DOUBLE_EQ(LrSchedule{}.Factor(5), 1.0);
}

TEST(LrSchedule, AConstantOneRisesAndStays) {
  const LrSchedule constant = ScheduleOf(LrDecay::kConstant, 0.3);
  EXPECT_DOUBLE_EQ(constant.Factor(4), 0.5);
  for (const int64_t step : {9, 10, 60, 110, 500}) EXPECT_EQ(constant.Factor(step), 1.0) << step;
}

TEST(LrSchedule, ACosineOfManyWavesComesBack) {
  LrSchedule cosine = ScheduleOf(LrDecay::kCosine, 0.2);
  cosine.cycles = 1;
  EXPECT_NEAR(cosine.Factor(35), 0.6, 1e-12);  // a quarter of the wave: half of the way from 1 to 0.2
  EXPECT_NEAR(cosine.Factor(60), 0.2, 1e-12);
  EXPECT_NEAR(cosine.Factor(110), 1.0, 1e-12);
}

TEST(LrSchedule, WithRestartsItIsAtItsPeakAtTheBeginningOfEachCycle) {
  LrSchedule restarts = ScheduleOf(LrDecay::kCosineWithRestarts);
  restarts.cycles = 2;
  for (const int64_t step : {10, 60}) EXPECT_NEAR(restarts.Factor(step), 1.0, 1e-12) << step;
  for (const int64_t step : {35, 85}) EXPECT_NEAR(restarts.Factor(step), 0.5, 1e-12) << step;
  EXPECT_EQ(restarts.Factor(110), 0.0);
  restarts.cycles = 0.5;  // the cosine's default: one cycle
  EXPECT_NEAR(restarts.Factor(60), 0.5, 1e-12);
}

TEST(LrSchedule, APolynomialFallsAsItsPower) {
  LrSchedule polynomial = ScheduleOf(LrDecay::kPolynomial, 0.1);
  polynomial.power = 2;
  EXPECT_DOUBLE_EQ(polynomial.Factor(10), 1.0);
  EXPECT_DOUBLE_EQ(polynomial.Factor(60), 0.325);  // 0.1 + 0.9 / 4
  EXPECT_DOUBLE_EQ(polynomial.Factor(110), 0.1);
  EXPECT_DOUBLE_EQ(polynomial.Factor(200), 0.1);
}

TEST(LrSchedule, AnInverseSquareRootGoesOnBeyondTheLastStep) {
  LrSchedule inverse = ScheduleOf(LrDecay::kInverseSqrt);
  EXPECT_DOUBLE_EQ(inverse.Factor(10), 1.0);
  EXPECT_DOUBLE_EQ(inverse.Factor(40), 0.5);    // √(10 / 40)
  EXPECT_DOUBLE_EQ(inverse.Factor(1000), 0.1);  // √(10 / 1000)
  inverse.timescale = 30;
  EXPECT_DOUBLE_EQ(inverse.Factor(100), 0.5);  // √(30 / (30 + 90))
  const LrSchedule at_once{.decay = LrDecay::kInverseSqrt, .total_steps = 100};
  EXPECT_DOUBLE_EQ(at_once.Factor(30'000), 0.5);  // √(10,000 / 40,000)
}

TEST(LrSchedule, OneStepAheadReachesItsFloorInTheLastStep) {
  LrSchedule ahead = ScheduleOf(LrDecay::kCosineOneAhead, 0.1);
  EXPECT_DOUBLE_EQ(ahead.Factor(0), 0.1);  // 1 / 10
  EXPECT_DOUBLE_EQ(ahead.Factor(9), 1.0);
  EXPECT_NEAR(ahead.Factor(59), 0.55, 1e-12);
  EXPECT_NEAR(ahead.Factor(109), 0.1, 1e-12);
  ahead.warmup_start = 0.2;
  EXPECT_DOUBLE_EQ(ahead.Factor(0), 0.2);
  EXPECT_NEAR(ahead.Factor(3), 0.2 + 0.8 * 3 / 9, 1e-12);
  EXPECT_DOUBLE_EQ(ahead.Factor(9), 1.0);
}

TEST(LrSchedule, WithAStableStretchItFallsInTheLastStepsOnly) {
  LrSchedule stable = ScheduleOf(LrDecay::kWarmupStableDecay, 0.2);
  stable.decay_steps = 20;
  for (const int64_t step : {9, 10, 50, 89, 90}) EXPECT_EQ(stable.Factor(step), 1.0) << step;
  EXPECT_NEAR(stable.Factor(100), 0.6, 1e-12);                            // half of the way
  EXPECT_NEAR(stable.Factor(95), 0.2 + 0.8 * 0.8535533905932737, 1e-12);  // (1 + cos π/4) / 2
  EXPECT_EQ(stable.Factor(110), 0.2);
  EXPECT_EQ(stable.Factor(1000), 0.2);
  stable.decay_curve = LrCurve::kLinear;
  EXPECT_NEAR(stable.Factor(95), 0.8, 1e-12);
  stable.decay_curve = LrCurve::kOneMinusSqrt;
  EXPECT_NEAR(stable.Factor(95), 0.6, 1e-12);  // 1 − √¼
}

TEST(LrSchedule, BeforeAStableStretchItRisesFromItsFloor) {
  LrSchedule stable = ScheduleOf(LrDecay::kWarmupStableDecay, 0.2);
  stable.decay_steps = 20;
  EXPECT_NEAR(stable.Factor(4), 0.6, 1e-12);
  stable.warmup_curve = LrCurve::kCosine;
  EXPECT_NEAR(stable.Factor(4), 0.6, 1e-12);                               // (1 − cos π/2) / 2 is a half, too
  EXPECT_NEAR(stable.Factor(0), 0.2 + 0.8 * 0.024471741852423234, 1e-12);  // (1 − cos π/10) / 2
  stable.warmup_curve = LrCurve::kOneMinusSqrt;
  EXPECT_NEAR(stable.Factor(4), 0.2 + 0.8 * (1 - std::sqrt(0.5)), 1e-12);
}

}  // namespace
}  // namespace tdock::algo
