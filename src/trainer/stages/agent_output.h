// What an agent gives as its episode, held against what was generated for it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/completion.h"
#include "text/tokenizer.h"
#include "trainer/environment/environment.h"
#include "trainer/stages/transcript.h"

namespace tdock::trainer {

// A completion that an agent has asked for.
struct AgentGeneration {
  std::vector<int32_t> prompt = {};
  engine::Completion completion = {};  // without tokens until it is there
};

struct AgentTokens {
  std::vector<float> log_probs = {};  // of each token of the response; 0 where the mask is 0
  std::vector<TranscriptTurn> turns = {};
  bool finished = false;  // its last token ended a completion
};

// Tokens with mask 1 must be those of completions whose prompt is exactly what stands before them, from their first
// token on; an agent may leave out the end of one. Then their log-probabilities are those that they were sampled with.
// InvalidArgument names the first token that is none.
absl::StatusOr<AgentTokens> TokensOf(const environment::AgentOutput& output,
                                     const std::map<int64_t, AgentGeneration>& generations,
                                     const text::Tokenizer& tokenizer);

}  // namespace tdock::trainer
