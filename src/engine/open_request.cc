#include "engine/open_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "engine/model_folder.h"

namespace tdock::engine {
namespace {

// Whether an answer that came back goes on if it is given again.
bool GoesOn(const Completion& so_far, int64_t most_tokens) {
  if (so_far.finish_reason == FinishReason::kEndToken || so_far.finish_reason == FinishReason::kStop) return false;
  return static_cast<int64_t>(so_far.tokens.size()) < most_tokens;
}

// What a stop text is looked for in.
absl::Status CheckReadable(const Completion& so_far, const text::Tokenizer& tokenizer) {
  const std::unique_ptr<text::StreamDecoder> reader = tokenizer.MakeStreamDecoder();
  for (const int32_t token : so_far.tokens) {
    const absl::Status read = reader->Push(token).status();
    if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat("so_far cannot be read: ", read.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckSoFar(const Request& request, const EngineOptions& options, int64_t vocab_size) {
  if (request.so_far.empty()) return absl::OkStatus();
  if (!request.prompt.identity) {
    return absl::InvalidArgumentError(
        "so_far needs a prompt with an identity, the same as before: what the random numbers follow from");
  }
  if (std::cmp_not_equal(request.so_far.size(), request.prompt.samples)) {
    return absl::InvalidArgumentError(absl::StrCat("so_far has ", request.so_far.size(), " answers for ",
                                                   request.prompt.samples, " samples; it needs one for each, or none"));
  }
  for (const Completion& so_far : request.so_far) {
    // Comes back as it is.
    if (so_far.finish_reason == FinishReason::kEndToken || so_far.finish_reason == FinishReason::kStop) continue;
    if (so_far.log_probs.size() != so_far.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("an answer of so_far has ", so_far.tokens.size(), " tokens and ",
                                                     so_far.log_probs.size(), " log-probabilities"));
    }
    if (request.sampling.top_log_probs > 0 && so_far.top.size() != so_far.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("an answer of so_far has ", so_far.tokens.size(), " tokens and ",
                                                     so_far.top.size(), " lists for top_log_probs"));
    }
    if (!request.sampling.stop.empty()) TDOCK_RETURN_IF_ERROR(CheckReadable(so_far, *options.tokenizer));
    for (const int32_t token : so_far.tokens) {
      if (token >= 0 && token < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("so_far has token ", token, ", outside of the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPromptLogProbs(const Request& request, int64_t vocab_size) {
  if (!request.prompt_log_probs) return absl::OkStatus();
  if (*request.prompt_log_probs < 0 || *request.prompt_log_probs > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_log_probs must be between 0 and the size of the vocabulary (", vocab_size, "), not ",
                     *request.prompt_log_probs));
  }
  for (size_t i = 1; i < request.prompt.tokens.size(); ++i) {
    const int32_t token = request.prompt.tokens[i];
    if (token < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("prompt_log_probs: the prompt has token ", token, " at position ", i,
                                                   ", which has no probability; the model's answers are made of ",
                                                   vocab_size, " tokens, whose ids are 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OpenRequest::AddScores(std::vector<ScoredToken> tokens, int64_t version) {
  for (ScoredToken& token : tokens) {
    if (!std::isfinite(token.log_prob)) {
      return absl::InternalError(
          absl::StrCat("the logits of position ", scored.size() + 1, ", in the prompt, are not finite"));
    }
    scored.push_back({.log_prob = token.log_prob, .rank = token.rank, .version = version, .top = std::move(token.top)});
  }
  leader()->max_shared = std::ssize(scored);
  if (scored.size() + 1 < request.prompt.tokens.size()) return absl::OkStatus();
  prompt_log_probs = std::make_shared<const std::vector<PromptToken>>(std::move(scored));
  leader()->max_shared = std::numeric_limits<int64_t>::max();
  return absl::OkStatus();
}

void OpenRequest::ForgetScores() {
  if (!scores_prompt()) return;
  scored.clear();
  leader()->max_shared = 0;
}

Choosing::Choosing(const SamplingParams& given, std::span<const int32_t> end_tokens, const text::Tokenizer* tokenizer,
                   const model::Decoder& decoder)
    : params(given),
      sampler(params, end_tokens, decoder.used_tokens(), decoder.device()),
      ends(params, end_tokens, tokenizer) {}

absl::Status CheckPrompt(const Prompt& prompt, const model::ModelConfig& config, int64_t least_room) {
  if (prompt.tokens.empty()) return absl::InvalidArgumentError("is empty; it needs at least one token");
  if (prompt.samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat("asks for ", prompt.samples, " samples; at least 1 is needed"));
  }
  if (std::ssize(prompt.tokens) + least_room > config.context_length()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", prompt.tokens.size(), " tokens, ",
                     least_room > 0 ? "which leaves no room for an answer in the " : "more than the ",
                     config.context_length(), " positions of the model"));
  }
  for (const int32_t token : prompt.tokens) {
    if (token >= 0 && token < config.vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("has token ", token, ", outside of the vocabulary of ", config.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const EngineOptions& options, const model::Decoder& decoder) {
  if (options.max_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_rows must be at least 1, not ", options.max_rows));
  }
  if (options.max_step_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_tokens must be at least 1, not ", options.max_step_tokens));
  }
  if (options.cache_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache_bytes must be at least 0 (as the memory allows), not ", options.cache_bytes));
  }
  if (options.int8_weights && !decoder.batch_invariant()) {
    return absl::InvalidArgumentError("int8_weights is for decoders in batch-invariant mode");
  }
  if (options.draft == nullptr) return absl::OkStatus();
  if (options.speculative_tokens < 1) {
    return absl::InvalidArgumentError("a draft guesses, so speculative_tokens must be at least 1, not 0");
  }
  return CheckDraft(*options.draft, decoder);
}

absl::Status CheckRequest(const Request& request, const EngineOptions& options, int64_t vocab_size) {
  TDOCK_RETURN_IF_ERROR(CheckSamplingParams(request.sampling, vocab_size, options.end_tokens,
                                            /*least_new_tokens=*/request.prompt_log_probs ? 0 : 1));
  TDOCK_RETURN_IF_ERROR(CheckPromptLogProbs(request, vocab_size));
  if (!request.sampling.stop.empty() && options.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "stop needs an engine with a tokenizer (EngineOptions::tokenizer), to read answers");
  }
  if (request.token_budget < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_budget must be at least 0 (no limit), not ", request.token_budget));
  }
  return CheckSoFar(request, options, vocab_size);
}

int64_t LongestOf(const Request& request, const model::ModelConfig& config) {
  const auto prompt = static_cast<int64_t>(request.prompt.tokens.size());
  return prompt + std::min(request.sampling.max_new_tokens, config.context_length() - prompt);
}

void MakeSequences(OpenRequest& open, uint64_t arrival, const model::ModelConfig& config, std::vector<Answer>& ended) {
  Request& request = open.request;
  const int64_t most_tokens = LongestOf(request, config) - static_cast<int64_t>(request.prompt.tokens.size());
  const Choosing& choosing = *open.choosing;
  const uint64_t seed = DeriveSeed(request.sampling.seed, request.prompt.identity.value_or(open.id));
  for (int64_t sample = 0; sample < request.prompt.samples; ++sample) {
    Completion so_far = request.so_far.empty() ? Completion{} : std::move(request.so_far[static_cast<size_t>(sample)]);
    if (!so_far.tokens.empty() && !GoesOn(so_far, most_tokens)) {
      ended.push_back({.request = open.id, .sample = sample, .completion = std::move(so_far)});
      continue;
    }
    so_far.finish_reason = FinishReason::kLength;
    auto sequence = std::make_unique<Sequence>();
    sequence->request = &open;
    sequence->sample = sample;
    sequence->priority = request.priority;
    sequence->arrival = arrival++;
    sequence->state = Sequence::State::kFollows;
    sequence->shares = open.rope_length == 0;
    sequence->longest = LongestOf(request, config);
    sequence->may_guess = !request.constrain && !choosing.sampler.needs_counts();
    sequence->tokens = request.prompt.tokens;
    sequence->tokens.insert(sequence->tokens.end(), so_far.tokens.begin(), so_far.tokens.end());
    sequence->stream = DeriveSeed(seed, static_cast<uint64_t>(sample));
    sequence->stop_texts = choosing.ends.MakeReader();
    if (choosing.sampler.needs_counts()) sequence->counts = TokenCounts(request.prompt.tokens);
    if (request.constrain) sequence->constraint = request.constrain(sample);
    for (const int32_t token : so_far.tokens) {
      if (sequence->constraint != nullptr) sequence->constraint->Accept(token);
      if (choosing.sampler.needs_counts()) sequence->counts.AddToAnswer(token);
      if (sequence->stop_texts == nullptr) continue;
      const absl::Status read = sequence->stop_texts->Push(token, /*heeded=*/false).status();
      TDOCK_CHECK(read.ok(), "CheckRequest() has read it");
    }
    sequence->completion = std::move(so_far);
    open.sequences.push_back(std::move(sequence));
  }
  request.so_far.clear();
  if (open.leader() != nullptr) open.ForgetScores();
}

}  // namespace tdock::engine
