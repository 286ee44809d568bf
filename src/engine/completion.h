// Answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sampling/sampler.h"
#include "text/tokenizer.h"

namespace tdock::engine {

// Why an answer ended.
enum class FinishReason {
  kLength,    // at max_new_tokens, or where the model has no more positions
  kEndToken,  // with an end token of the engine
  kStop,      // with one of SamplingParams::stop_tokens, a text of SamplingParams::stop, or a constraint complete
  kBudget,    // with Request::token_budget
  kDeadline,  // at Request::deadline
  kAborted,   // by Engine::Abort()
};

// "length", "end_token", "stop", "budget", "deadline" or "aborted".
const char* NameOf(FinishReason reason);

// Tokens that follow one another and were sampled with the same weights.
struct WeightsSpan {
  int64_t version = 0;
  int64_t tokens = 0;
  bool operator==(const WeightsSpan&) const = default;
};

// A token of an answer as it is there, with what Completion has of it.
struct NewToken {
  int32_t token = 0;
  float log_prob = 0;
  int64_t version = 0;  // of the weights that it was sampled with
  std::vector<TokenLogProb> top = {};
};

// A token of a prompt, under softmax(logits) of what comes before it, whatever the request's SamplingParams.
struct PromptToken {
  float log_prob = 0;
  // Its place among all tokens, from 1 for the most likely one; of equally likely ones the lower id goes first.
  int64_t rank = 1;
  int64_t version = 0;                 // of the weights
  std::vector<TokenLogProb> top = {};  // those of rank 1, 2, …, without those that have no probability
};

// Those of a prompt, but for its first token, which nothing comes before.
using PromptLogProbs = std::shared_ptr<const std::vector<PromptToken>>;

struct Completion {
  std::vector<int32_t> tokens;  // all that were sampled, with the end or stop token, or those of the stop text
  // Of each token, under softmax(logits / temperature), or softmax(logits) where the temperature is 0, whatever else
  // SamplingParams filters; with filtered_log_probs, of the distribution that was sampled from.
  std::vector<float> log_probs;
  bool finished = false;  // ended with kEndToken or kStop
  FinishReason finish_reason = FinishReason::kLength;
  // Where a stop text ended it: how many bytes of Decode(tokens) stand before that text.
  std::optional<size_t> text_bytes = std::nullopt;
  // With top_log_probs, for each token the most likely ones of its position, of the same distribution as log_probs. In
  // falling order, of equal ones the lower id first; without those that have no probability.
  std::vector<std::vector<TokenLogProb>> top = {};
  std::vector<WeightsSpan> weights = {};  // of its tokens, in their order
  // With Request::prompt_log_probs; all samples share them. Null where the answer ended before its prompt was read.
  PromptLogProbs prompt_log_probs = nullptr;
};

// The text of a completion, up to where a stop text ended it. The errors of Tokenizer::Decode().
absl::StatusOr<std::string> TextOf(const Completion& completion, const text::Tokenizer& tokenizer);

}  // namespace tdock::engine
