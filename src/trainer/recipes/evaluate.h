// Greedy accuracy on problems with known answers.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "text/problem.h"
#include "text/tokenizer.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {

// A problem as token ids; the answer includes the end token.
struct EncodedProblem {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

absl::StatusOr<std::vector<EncodedProblem>> EncodeProblems(const text::PromptSet& problems,
                                                           const text::Tokenizer& tokenizer);

struct Evaluation {
  double accuracy = 0;          // fraction of problems answered exactly, end token included
  std::vector<Answer> samples;  // the answers to the first problems
};

// Answers every problem at temperature 0. Returns `samples_kept` answers as text.
absl::StatusOr<Evaluation> Evaluate(const engine::Engine& engine, const text::Tokenizer& tokenizer,
                                    const text::PromptSet& problems, const std::vector<EncodedProblem>& encoded,
                                    int64_t max_response_length, int64_t samples_kept);

}  // namespace tdock::trainer
