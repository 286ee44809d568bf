// The rollout engine: answers prompts with a decoder, many rows at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/workers.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/sampling_params.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"

namespace tdock::engine {

struct Prompt {
  std::vector<int32_t> tokens;
  int64_t samples = 1;  // the number of completions
  // What the random numbers of its completions follow from, beside the call's seed; absent: its number in the call.
  std::optional<uint64_t> identity = std::nullopt;
};

// Why an answer ended.
enum class FinishReason {
  kLength,    // at max_new_tokens, or where the model has no more positions
  kEndToken,  // with an end token of the engine
  kStop,      // with one of SamplingParams::stop_tokens, or a text of SamplingParams::stop
};

struct Completion {
  std::vector<int32_t> tokens;  // all that were sampled, with the end or stop token, or those of the stop text
  // Of each token, under softmax(logits / temperature), or softmax(logits) where the temperature is 0, whatever else
  // SamplingParams filters; with filtered_log_probs, of the distribution that was sampled from.
  std::vector<float> log_probs;
  bool finished = false;  // ended for another reason than kLength
  FinishReason finish_reason = FinishReason::kLength;
  // Where a stop text ended it: how many bytes of Decode(tokens) stand before that text.
  std::optional<size_t> text_bytes = std::nullopt;
  // With top_log_probs, for each token the most likely ones of its position, of the same distribution as log_probs. In
  // falling order, of equal ones the lower id first; without those that have no probability.
  std::vector<std::vector<TokenLogProb>> top = {};
};

// The text of a completion, up to where a stop text ended it. The errors of Tokenizer::Decode().
absl::StatusOr<std::string> TextOf(const Completion& completion, const text::Tokenizer& tokenizer);

struct EngineOptions {
  std::vector<int32_t> end_tokens;  // any of them ends a completion
  // The number of completions that a thread works on at the same time: limits the cache. One prompt's samples stay
  // together, even if there are more. On the CPU they are no more than kMostRows.
  int64_t max_rows = 4096;
  static constexpr int64_t kMostRows = 128;
  Workers* workers = nullptr;                  // work on the prompts; null: the calling thread does everything
  const text::Tokenizer* tokenizer = nullptr;  // reads answers for SamplingParams::stop, which need one
};

// Uses the decoder's weights as they are at each call. Thread-safe while they do not change.
class Engine {
 public:
  Engine(const model::Decoder& decoder, const EngineOptions& options) : decoder_(decoder), options_(options) {}

  // The completions of prompt 0, then those of prompt 1, and so on. The random numbers of a completion depend only on
  // the seed, the prompt's identity, its number among the prompt's and the position. The same call gives the same
  // result whatever the number of threads; another set of prompts or max_rows may change the last bits of the logits. A
  // completion also ends where the model has no more positions.
  //
  // InvalidArgument names a prompt that is empty, has a token outside of the vocabulary, or leaves no room for an
  // answer, or a parameter (CheckSamplingParams()). Internal names a prompt for which the model's logits, or what bias
  // and penalties make of them, are not finite. Throws c10::Error if libtorch does.
  absl::StatusOr<std::vector<Completion>> Generate(std::span<const Prompt> prompts, const SamplingParams& params) const;

 private:
  const model::Decoder& decoder_;
  const EngineOptions options_;
};

}  // namespace tdock::engine
