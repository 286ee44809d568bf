// The groups `generate`, `train_step` and `load`: models on libtorch.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// Tokens that the rollout engine samples in a second, prompts included in the time.
std::vector<Benchmark> GenerateBenchmarks();

// Tokens of samples that an optimizer step goes through in a second.
std::vector<Benchmark> TrainStepBenchmarks();

// Bytes of a checkpoint that are loaded in a second.
std::vector<Benchmark> LoadBenchmarks();

std::string LibtorchVersion();

}  // namespace tdock::bench
