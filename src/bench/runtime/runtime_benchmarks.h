// The groups `runtime` and `parallel`: what runs of several processes, and training on several ranks, cost.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// They start this program again, as workers (workers.h), and `tdock`, which lies beside it.
std::vector<Benchmark> RuntimeBenchmarks();

// Their parts: calls of a controller; the weights of a model on their way to another process; whole steps of a run;
// gradients on their way to all ranks.
Benchmark CallBenchmark();
Benchmark WeightsBenchmark();
std::vector<Benchmark> GrpoStepBenchmarks();
Benchmark ReductionBenchmark();
Benchmark TrainingMemoryBenchmark();

}  // namespace tdock::bench
