// The options of a command that say how answers are sampled.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/command/command.h"
#include "engine/sampling/sampling_params.h"

namespace tdock::cli {

struct SamplingArguments {
  engine::SamplingParams params{.max_new_tokens = 128};
  std::vector<std::string> logit_bias;  // "TOKEN:BIAS"
};

// `arguments` must live until the command line has been parsed.
void AddSamplingOptions(CLI::App& command, SamplingArguments& arguments);

// InvalidArgument names an argument that cannot be read. The parameters themselves are not checked.
absl::StatusOr<engine::SamplingParams> ReadSampling(const SamplingArguments& arguments);

}  // namespace tdock::cli
