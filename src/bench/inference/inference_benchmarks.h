// The group `serve`: a model behind HTTP, for many clients at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "bench/harness/benchmark.h"
#include "inference/grammar/token_masks.h"

namespace tdock::bench {

// What 64 concurrent streams of the Llama of 95 million weights get of `tdock serve`; beside the engine alone, and
// while its weights are exchanged.
std::vector<Benchmark> InferenceBenchmarks();

// In grammar_benchmarks.cc: the time that a schema of 10 KB takes to compile, and that a token of an answer takes
// beside the model.
std::vector<Benchmark> GrammarBenchmarks();

// The masks of a schema with a text that has no end, for so many made-up tokens. Internal to this module.
std::shared_ptr<inference::TokenMasks> MasksOfLongAnswers(size_t tokens);

}  // namespace tdock::bench
