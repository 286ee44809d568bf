// How tokens are shown: their texts and log-probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "engine/completion.h"
#include "text/tokenizer.h"

namespace tdock::inference {

// Thread-safe. The bytes of a large vocabulary are found when the first of them is asked for.
class TokenTexts {
 public:
  // The tokenizer must outlive it.
  explicit TokenTexts(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the token adds to a text that has begun: a space before a word included, and of a part of a character those
  // bytes. Of a special token its name.
  std::string BytesOf(int32_t token) const;
  // The same as UTF-8: a part of a character as OpenAI shows it, "bytes:\\xe2\\x82".
  std::string TextOf(int32_t token) const;
  // The characters that begin in it.
  size_t CharactersOf(int32_t token) const;

  // The bytes of all tokens: see TokenBytes().
  const std::vector<std::string>& AllBytes() const;

 private:
  const text::Tokenizer& tokenizer_;
  mutable std::once_flag found_;
  mutable std::vector<std::string> bytes_;
};

// The characters of the tokens' own texts.
size_t CharactersOf(std::span<const engine::NewToken> tokens, const TokenTexts& texts);

// [{"token", "logprob", "bytes", "top_logprobs": […]}, …], as chats have log-probabilities.
nlohmann::ordered_json LogProbsOf(const std::vector<engine::NewToken>& tokens, const TokenTexts& texts);

// JSON in the form of vLLM's "prompt_logprobs": null for the first token, and for each other one {ID: {"logprob",
// "rank", "decoded_token"}} with the token itself and the `top` most likely ones. Null where the prompt was not read.
std::string PromptLogProbsText(std::span<const int32_t> prompt, const engine::PromptLogProbs& log_probs, int64_t top,
                               const TokenTexts& texts);

// The "logprobs" of a completion: lists beside one another.
class CompletionLogProbs {
 public:
  // `offset`: characters of the tokens' own texts before the first one. The texts must outlive it.
  CompletionLogProbs(size_t offset, const TokenTexts& texts) : texts_(texts), offset_(offset) {}

  // The tokens of a prompt that is a part of the completion, with the `top` most likely ones beside each.
  void AddPrompt(std::span<const int32_t> prompt, const engine::PromptLogProbs& log_probs, int64_t top);
  void Add(std::span<const engine::NewToken> tokens);

  // {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
  nlohmann::ordered_json Take();

 private:
  // Where two of the most likely tokens have the same text, the more likely one is shown.
  void Add(int32_t token, std::optional<float> log_prob, std::span<const engine::TokenLogProb> top);

  const TokenTexts& texts_;
  size_t offset_;
  nlohmann::ordered_json::array_t shown_, log_probs_, tops_, offsets_;
};

}  // namespace tdock::inference
