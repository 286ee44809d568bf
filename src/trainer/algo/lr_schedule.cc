#include "trainer/algo/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace tdock::algo {
namespace {

constexpr double kPi = std::numbers::pi;

double Wave(double turns) { return 0.5 * (1.0 + std::cos(2.0 * kPi * turns)); }

// u, by the steps since the warm-up.
double Done(const LrSchedule& schedule, double steps) {
  const auto length = static_cast<double>(std::max<int64_t>(schedule.total_steps - schedule.warmup_steps, 1));
  return std::min(steps / length, 1.0);
}

double Fall(LrCurve curve, double v, double cycles) {
  switch (curve) {
    case LrCurve::kLinear:
      return 1.0 - v;
    case LrCurve::kCosine:
      return Wave(cycles * v);
    case LrCurve::kOneMinusSqrt:
      return 1.0 - std::sqrt(v);
  }
  return 1.0 - v;
}

double Constant(const LrSchedule& /*schedule*/, double /*steps*/) { return 1.0; }
double Linear(const LrSchedule& schedule, double steps) { return 1.0 - Done(schedule, steps); }
double Cosine(const LrSchedule& schedule, double steps) { return Wave(schedule.cycles * Done(schedule, steps)); }
double CosineOneAhead(const LrSchedule& schedule, double steps) { return Cosine(schedule, steps + 1.0); }

double CosineWithRestarts(const LrSchedule& schedule, double steps) {
  const double done = Done(schedule, steps);
  return done < 1.0 ? Wave(0.5 * std::fmod(std::max(schedule.cycles, 1.0) * done, 1.0)) : 0.0;
}

double Polynomial(const LrSchedule& schedule, double steps) {
  return std::pow(1.0 - Done(schedule, steps), schedule.power);
}

double InverseSqrt(const LrSchedule& schedule, double steps) {
  const int64_t by_default = schedule.warmup_steps > 0 ? schedule.warmup_steps : 10'000;
  const auto timescale = static_cast<double>(schedule.timescale > 0 ? schedule.timescale : by_default);
  return std::sqrt(timescale / (timescale + steps));
}

double WarmupStableDecay(const LrSchedule& schedule, double steps) {
  const auto stable = static_cast<double>(schedule.total_steps - schedule.warmup_steps - schedule.decay_steps);
  if (steps < stable) return 1.0;
  const double v = std::min((steps - stable) / static_cast<double>(std::max<int64_t>(schedule.decay_steps, 1)), 1.0);
  return v < 1.0 ? Fall(schedule.decay_curve, v, schedule.cycles) : 0.0;
}

// The share of the way from the floor to the peak, by the steps since the warm-up.
struct DecayShape {
  LrDecay decay;
  double (*share)(const LrSchedule& schedule, double steps);
};
constexpr DecayShape kShapes[] = {{LrDecay::kConstant, Constant},
                                  {LrDecay::kLinear, Linear},
                                  {LrDecay::kCosine, Cosine},
                                  {LrDecay::kCosineWithRestarts, CosineWithRestarts},
                                  {LrDecay::kCosineOneAhead, CosineOneAhead},
                                  {LrDecay::kPolynomial, Polynomial},
                                  {LrDecay::kInverseSqrt, InverseSqrt},
                                  {LrDecay::kWarmupStableDecay, WarmupStableDecay}};

double WarmUp(const LrSchedule& schedule, double step) {
  const auto length = static_cast<double>(schedule.warmup_steps);
  if (schedule.decay == LrDecay::kWarmupStableDecay) {
    return std::lerp(schedule.floor, 1.0, Fall(schedule.warmup_curve, 1.0 - (step + 1.0) / length, 0.5));
  }
  if (schedule.decay == LrDecay::kCosineOneAhead && schedule.warmup_start > 0) {
    return std::lerp(schedule.warmup_start, 1.0, step / std::max(length - 1.0, 1.0));
  }
  return (step + 1.0) / length;
}

}  // namespace

double LrSchedule::Factor(int64_t step) const {
  if (step < warmup_steps) return WarmUp(*this, static_cast<double>(step));
  const DecayShape* const shape = std::find_if(
      std::begin(kShapes), std::end(kShapes), [this](const DecayShape& candidate) { return candidate.decay == decay; });
  return std::lerp(floor, 1.0, shape->share(*this, static_cast<double>(step - warmup_steps)));
}

}  // namespace tdock::algo
