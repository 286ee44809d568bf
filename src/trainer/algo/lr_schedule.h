// Learning rates over the steps of a run, relative to their peak. Pure functions of the number of the step, so that a
// run that goes on has the same ones.
//
// With s the step from 0, W the warm-up, T all steps, u = min((s − W) / max(T − W, 1), 1), c cycles and a floor f, the
// rate is f + (1 − f)·share once s ≥ W, and (s + 1) / W before. The shares come from transformers 5,
// get_scheduler(); its warm-ups begin one step earlier, at 0, which makes the first step one without effect.
#pragma once

#include <cstdint>

namespace tdock::algo {

enum class LrDecay {
  kConstant,            // 1
  kLinear,              // 1 − u
  kCosine,              // (1 + cos 2πcu) / 2 (Loshchilov and Hutter 2017, "SGDR", eq. 5)
  kCosineWithRestarts,  // (1 + cos π(cu mod 1)) / 2, and 0 for u = 1; c is at least 1
  kCosineOneAhead,      // kCosine at s + 1; the warm-up rises from `warmup_start` over W − 1 steps, if that is not 0
  kPolynomial,          // (1 − u)^power
  kInverseSqrt,         // √(t / (t + s − W)) (Zhai et al. 2022, "Scaling vision transformers"), t the time scale
  // 1 until the last D steps, in which `decay_curve` falls; the warm-up is f + (1 − f)·`warmup_curve` (Hu et al. 2024,
  // "MiniCPM", eq. 1)
  kWarmupStableDecay,
};

// The fall of a share with v from 0 to 1; its rise is the same backwards, with half a wave.
enum class LrCurve {
  kLinear,        // 1 − v
  kCosine,        // (1 + cos 2πcv) / 2
  kOneMinusSqrt,  // 1 − √v
};

struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  int64_t warmup_steps = 0;                 // W
  int64_t total_steps = 0;                  // T
  double floor = 0.0;                       // f
  double cycles = 0.5;                      // c; ½ falls once
  double power = 1.0;                       // of kPolynomial
  int64_t timescale = 0;                    // of kInverseSqrt; 0: W, or 10,000 without a warm-up
  int64_t decay_steps = 0;                  // D, of kWarmupStableDecay
  LrCurve warmup_curve = LrCurve::kLinear;  // of kWarmupStableDecay
  LrCurve decay_curve = LrCurve::kCosine;   // of kWarmupStableDecay
  double warmup_start = 0.0;                // of kCosineOneAhead; 0: 1 / W

  // The rate at a step, relative to its peak.
  double Factor(int64_t step) const;
};

}  // namespace tdock::algo
