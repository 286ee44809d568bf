// The group `dock`: the dock inside one process.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// The partition that they make.
inline constexpr char kPartition[] = "bench";

// Sizes of tables go up to ten million rows, or to ten thousand where `quick` is set.
std::vector<Benchmark> DockBenchmarks(bool quick);

// Its parts: what bookkeeping costs, what bytes cost, and what threads that wait for each other cost.
void AddTableBenchmarks(std::vector<Benchmark>& benchmarks, bool quick);
void AddPayloadBenchmarks(std::vector<Benchmark>& benchmarks);
void AddFlowBenchmarks(std::vector<Benchmark>& benchmarks);
// And what it costs to send rows back, and to carry some over.
void AddVersionBenchmarks(std::vector<Benchmark>& benchmarks, bool quick);

}  // namespace tdock::bench
