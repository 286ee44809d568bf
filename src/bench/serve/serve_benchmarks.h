// The group `serve`: a model behind HTTP, for many clients at once.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// What 64 concurrent streams of the Llama of 95 million weights get of `tdock serve`; beside the engine alone, and
// while its weights are exchanged.
std::vector<Benchmark> ServeBenchmarks();

}  // namespace tdock::bench
