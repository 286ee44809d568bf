#include "bench/service/service_benchmarks.h"

namespace tdock::bench {

std::vector<Benchmark> ServiceBenchmarks(bool quick) {
  std::vector<Benchmark> benchmarks;
  AddTransferBenchmarks(benchmarks);
  AddCallBenchmarks(benchmarks, quick);
  return benchmarks;
}

}  // namespace tdock::bench
