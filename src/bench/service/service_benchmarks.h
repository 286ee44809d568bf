// The group `service`: a dock in another process.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// They run the program tdock-dock, which lies beside this one. Tables go up to a million rows, or to ten thousand where
// `quick` is set.
std::vector<Benchmark> ServiceBenchmarks(bool quick);

// Its parts: what bytes cost, and what calls cost.
void AddTransferBenchmarks(std::vector<Benchmark>& benchmarks);
void AddCallBenchmarks(std::vector<Benchmark>& benchmarks, bool quick);

}  // namespace tdock::bench
