// What a step's figures say about speed.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>

#include "core/base/workers.h"
#include "tdock/clock.h"

namespace tdock::trainer {

// Floating-point operations per second that products of matrices reach in `dtype` on `device`, as a decoder computes
// them: of 512 × 512 on each of the workers at the same time, on a GPU of 4096 × 4096; the fastest of four counts.
// Takes milliseconds. 0 if the clock does not move.
double MeasurePeakFlops(Workers& workers, c10::ScalarType dtype, const c10::Device& device, Clock& clock);

// Adds to the metrics of a step what follows from them:
//
//   perf/time_per_step        timing_s/step
//   perf/throughput           perf/total_num_tokens per second of the step
//   timing_per_token_ms/PHASE timing_s/PHASE for each token of the step, or for each generated one in `rollout`
//   perf/flops/step           the sum of perf/flops/PHASE
//   perf/mfu/PHASE, …/step    perf/flops/PHASE per second of the phase, as a share of `peak_flops` per second; not
//                             where that is 0
//
// Nothing where there is no timing_s/step.
void AddSpeed(double peak_flops, std::map<std::string, double>& metrics);

}  // namespace tdock::trainer
