#include "bench/dock/dock_benchmarks.h"

namespace tdock::bench {

std::vector<Benchmark> DockBenchmarks(bool quick) {
  std::vector<Benchmark> benchmarks;
  AddPayloadBenchmarks(benchmarks);
  AddFlowBenchmarks(benchmarks);
  AddTableBenchmarks(benchmarks, quick);
  AddVersionBenchmarks(benchmarks, quick);
  return benchmarks;
}

}  // namespace tdock::bench
