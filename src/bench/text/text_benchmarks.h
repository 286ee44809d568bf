// The group `text`: tokenizers.
#pragma once

#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// Their tokenizers are made here, of made-up words; text is some megabytes of such words, or less where `quick` is set.
std::vector<Benchmark> TextBenchmarks(bool quick);

}  // namespace tdock::bench
