// The group `runtime`: what runs of several processes cost.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// They start this program again, as workers (workers.h), and `tdock`, which lies beside it.
std::vector<Benchmark> RuntimeBenchmarks();

// Its parts: calls of a controller; the weights of a model on their way to another process; whole steps of a run.
Benchmark CallBenchmark();
Benchmark WeightsBenchmark();
std::vector<Benchmark> GrpoStepBenchmarks();

}  // namespace tdock::bench
