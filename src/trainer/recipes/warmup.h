// The supervised warm-up: enough right answers for rewards to be seen at all.
#pragma once

#include "absl/status/statusor.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"
#include "trainer/recipes/evaluate.h"
#include "trainer/recipes/grpo_config.h"
#include "trainer/recipes/run_context.h"
#include "trainer/run_log/run_directory.h"
#include "trainer/stages/policy.h"

namespace tdock::trainer {

// A set of problems in both forms.
struct ProblemSet {
  text::PromptSet problems;
  std::vector<EncodedProblem> encoded;
};

// Trains the decoder on the answers of `train` (cross-entropy over the answer's tokens, end token included) until its
// greedy accuracy on `validation` reaches the target or the steps are used up. The accuracy is also measured before the
// first step. Logs phase "warmup". Returns the steps taken. Internal where the loss stops being finite.
absl::StatusOr<int64_t> RunWarmup(const GrpoConfig& config, const text::Tokenizer& tokenizer, const ProblemSet& train,
                                  const ProblemSet& validation, const model::Decoder& decoder,
                                  const engine::EngineOptions& engine_options, const ForwardOptions& forward,
                                  RunDirectory& run, const RunContext& context);

}  // namespace tdock::trainer
