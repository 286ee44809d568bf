// The inputs of a GRPO run: everything that it reads or creates before it writes anything.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"
#include "trainer/recipes/grpo_config.h"
#include "trainer/recipes/warmup.h"

namespace tdock::trainer {

// The purposes of the seeds derived from the run's.
enum class SeedPurpose : uint64_t { kModel = 1, kData, kPrompts, kRollout, kMiniBatches, kAdapters };

uint64_t SeedFor(const GrpoConfig& config, SeedPurpose purpose);

struct RunInputs {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<model::Decoder> decoder;
  std::vector<int32_t> end_tokens;  // end-of-answer tokens; the tokenizer's first
  ProblemSet train, validation, test;
};

// InvalidArgument if the device, the model or the lengths are unusable; other codes if a file cannot be read. Throws
// c10::Error if memory is exhausted.
absl::StatusOr<RunInputs> LoadRunInputs(const GrpoConfig& config, Env& env);

}  // namespace tdock::trainer
