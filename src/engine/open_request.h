// A request that the engine works on. Internal to this module.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/answer_end.h"
#include "engine/engine.h"
#include "engine/sampling/sampler.h"
#include "engine/sequence.h"

namespace tdock::engine {

// How tokens are chosen and answers end, which requests share.
struct Choosing {
  Choosing(const SamplingParams& given, std::span<const int32_t> end_tokens, const text::Tokenizer* tokenizer,
           const model::Decoder& decoder);
  // `ends` refers to `params`.
  Choosing(const Choosing&) = delete;
  Choosing& operator=(const Choosing&) = delete;

  const SamplingParams params;
  const Sampler sampler;
  const AnswerEnds ends;
};

struct OpenRequest {
  RequestId id = 0;
  Request request;  // without the lists of its sampling parameters, which `choosing` has
  std::shared_ptr<const Choosing> choosing;
  int64_t rope_length = 0;                           // see TokenBatch::rope_length
  std::vector<std::unique_ptr<Sequence>> sequences;  // one for each sample that has not ended
  // With Request::prompt_log_probs: the prompt's tokens from the second on, as far as the leader has read them. Once
  // all are known, they move to `prompt_log_probs`.
  std::vector<PromptToken> scored;
  PromptLogProbs prompt_log_probs;

  // The sample whose prompt is read for all; null if they have ended.
  Sequence* leader() const { return sequences.empty() ? nullptr : sequences.front().get(); }
  // True while log-probabilities of the prompt are asked for and missing.
  bool scores_prompt() const { return request.prompt_log_probs && prompt_log_probs == nullptr; }
  bool wants_tokens() const { return request.sampling.max_new_tokens > 0; }

  // Adds the tokens that follow those in `scored`. Internal where logits are not finite.
  absl::Status AddScores(std::vector<ScoredToken> tokens, int64_t version);
  // Empties `scored`, so that all of it is read again.
  void ForgetScores();
};

// InvalidArgument says why the prompt cannot be answered: "is empty; …". It must leave `least_room` positions.
absl::Status CheckPrompt(const Prompt& prompt, const model::ModelConfig& config, int64_t least_room = 1);
// Of those that cannot work: InvalidArgument names the option.
absl::Status CheckOptions(const EngineOptions& options, const model::Decoder& decoder);

// The rest of a request, but for a cache that is too small for it.
absl::Status CheckRequest(const Request& request, const EngineOptions& options, int64_t vocab_size);

// The most tokens that an answer of the request can be long, with its prompt.
int64_t LongestOf(const Request& request, const model::ModelConfig& config);

// Those samples that go on. `arrival` is of the first one; `ended` gets the others, as they were.
void MakeSequences(OpenRequest& open, uint64_t arrival, const model::ModelConfig& config, std::vector<Answer>& ended);

}  // namespace tdock::engine
