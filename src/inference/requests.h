// From what a client asks to the tokens that a model reads, and to what an engine is asked.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "engine/engine.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/problem.h"
#include "inference/served_model.h"

namespace tdock::inference {

// Maximum number of log-probabilities of prompts in a reply: tokens, those beside them, and all answers that repeat
// them.
inline constexpr int64_t kMaxPromptScores = 1 << 22;

// One for each prompt, in their order; without on_token. `seed` and `identity` are for requests that bring no seed.
// Texts are read up to as many tokens as the context has room for. `stop` is polled meanwhile; its error, which is a
// DeadlineExceeded where the time is up, becomes the problem.
std::variant<std::vector<engine::Request>, Problem> RequestsOf(const Ask& ask, const ServedModel& model, uint64_t seed,
                                                               uint64_t identity, const StopCheck& stop = {});

// InvalidArgument and the like are the client's, with the status 400; others the server's.
Problem ProblemOf(const absl::Status& status);

// In prompts.cc.

// How prompts are read.
struct PromptReading {
  // Polled meanwhile; its error, which is a DeadlineExceeded where the time is up, becomes the problem.
  StopCheck stop = {};
  int64_t wanted = 0;                                        // tokens of the answer
  int64_t max_tokens = std::numeric_limits<int64_t>::max();  // of a prompt
};

// The field that has the prompts.
const char* PromptFieldOf(Form form);

// One for each prompt, in their order; a conversation is one. Texts are read up to as many tokens as `reading` allows.
std::variant<std::vector<std::vector<int32_t>>, Problem> PromptsOf(const Ask& ask, const ServedModel& model,
                                                                   const PromptReading& reading);

// A problem if the model has no token of this id.
std::optional<Problem> CheckTokens(std::span<const int32_t> tokens, const char* field, const ServedModel& model);

}  // namespace tdock::inference
