#include "bench/runtime/runtime_benchmarks.h"

#include <iterator>
#include <utility>

namespace tdock::bench {

std::vector<Benchmark> RuntimeBenchmarks() {
  std::vector<Benchmark> benchmarks = {CallBenchmark(), WeightsBenchmark()};
  std::vector<Benchmark> steps = GrpoStepBenchmarks();
  std::move(steps.begin(), steps.end(), std::back_inserter(benchmarks));
  benchmarks.push_back(ReductionBenchmark());
  benchmarks.push_back(TrainingMemoryBenchmark());
  return benchmarks;
}

}  // namespace tdock::bench
