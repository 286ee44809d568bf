// The group `dock`: the dock inside one process.
#pragma once

#include <vector>

#include "bench/benchmark.h"

namespace tdock::bench {

// Sizes of tables go up to a million rows, or to ten thousand where `quick` is set.
std::vector<Benchmark> DockBenchmarks(bool quick);

}  // namespace tdock::bench
