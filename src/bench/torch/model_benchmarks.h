// The groups `kernels`, `generate`, `prefill`, `forward`, `train_step`, `sft_step`, `dpo_loss`, `lora_step`, `load` and
// `recipe`: models, the kernels that they are computed with, and runs that train them.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/benchmark.h"

namespace tdock::bench {

// The kernels of decoders on the CPU, beside what the machine's memory and arithmetic allow.
std::vector<Benchmark> KernelBenchmarks();

// Tokens that the rollout engine samples in a second, prompts included in the time; with a batch and a dtype, only the
// time after the first tokens. Prefill: tokens of a prompt that it reads in a second.
std::vector<Benchmark> GenerateBenchmarks();

// Tokens whose log-probabilities are computed in a second in batch-invariant mode, beside the fast mode.
std::vector<Benchmark> ForwardBenchmarks();

// Tokens of samples that an optimizer step goes through in a second.
std::vector<Benchmark> TrainStepBenchmarks();

// The same for whole steps of supervised fine-tuning, also of adapters alone, with the peak of resident memory.
std::vector<Benchmark> SftBenchmarks();

// Tokens of pairs of answers whose DPO loss and gradients are computed in a second.
std::vector<Benchmark> DpoBenchmarks();

// Bytes of a checkpoint that are loaded in a second.
std::vector<Benchmark> LoadBenchmarks();

// Samples that a run of GRPO goes through in a second: its stages at the same time, and asynchronous, beside its stages
// in turn; also with a reward that sleeps half of a step.
std::vector<Benchmark> RecipeBenchmarks();

std::string LibtorchVersion();

}  // namespace tdock::bench
