#include "inference/token_texts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "inference/grammar/token_bytes.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

Json BytesOf(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

std::span<const engine::TokenLogProb> FirstOf(const std::vector<engine::TokenLogProb>& tokens, int64_t count) {
  return std::span(tokens).first(std::min(tokens.size(), static_cast<size_t>(count)));
}

}  // namespace

const std::vector<std::string>& TokenTexts::AllBytes() const {
  std::call_once(found_, [this] { bytes_ = TokenBytes(tokenizer_); });
  return bytes_;
}

std::string TokenTexts::BytesOf(int32_t token) const {
  const std::vector<std::string>& all = AllBytes();
  const auto place = static_cast<size_t>(token);
  if (place < all.size() && !all[place].empty()) return all[place];
  return tokenizer_.Decode(std::span(&token, 1), text::SpecialTokens::kKeep).value_or("");
}

std::string TokenTexts::TextOf(int32_t token) const {
  std::string bytes = BytesOf(token);
  if (!FindInvalidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) absl::StrAppend(&text, "\\x", absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
  return text;
}

size_t TokenTexts::CharactersOf(int32_t token) const {
  const std::string bytes = BytesOf(token);
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

size_t CharactersOf(std::span<const engine::NewToken> tokens, const TokenTexts& texts) {
  size_t characters = 0;
  for (const engine::NewToken& token : tokens) characters += texts.CharactersOf(token.token);
  return characters;
}

Json LogProbsOf(const std::vector<engine::NewToken>& tokens, const TokenTexts& texts) {
  const auto entry = [&](int32_t token, float log_prob) {
    return Json{{"token", texts.TextOf(token)}, {"logprob", log_prob}, {"bytes", BytesOf(texts.BytesOf(token))}};
  };
  Json list = Json::array();
  for (const engine::NewToken& token : tokens) {
    Json one = entry(token.token, token.log_prob);
    one["top_logprobs"] = Json::array();
    for (const engine::TokenLogProb& top : token.top) one["top_logprobs"].push_back(entry(top.token, top.log_prob));
    list.push_back(std::move(one));
  }
  return list;
}

std::string PromptLogProbsText(std::span<const int32_t> prompt, const engine::PromptLogProbs& log_probs, int64_t top,
                               const TokenTexts& texts) {
  if (log_probs == nullptr) return "null";
  std::string list = "[null";
  for (size_t i = 1; i < prompt.size() && i <= log_probs->size(); ++i) {
    Json tokens = Json::object();
    const auto add = [&](int32_t token, float log_prob, int64_t rank) {
      const std::string id = absl::StrCat(token);
      if (tokens.contains(id)) return;
      tokens[id] = {{"logprob", log_prob}, {"rank", rank}, {"decoded_token", texts.TextOf(token)}};
    };
    const engine::PromptToken& own = (*log_probs)[i - 1];
    add(prompt[i], own.log_prob, own.rank);
    int64_t rank = 0;
    for (const engine::TokenLogProb& one : FirstOf(own.top, top)) add(one.token, one.log_prob, ++rank);
    absl::StrAppend(&list, ",", JsonText(tokens));
  }
  return list + "]";
}

void CompletionLogProbs::Add(int32_t token, std::optional<float> log_prob, std::span<const engine::TokenLogProb> top) {
  const std::string text = texts_.TextOf(token);
  Json likely = log_prob ? Json::object() : Json();
  if (log_prob) {
    for (const engine::TokenLogProb& one : top) {
      const std::string other = texts_.TextOf(one.token);
      if (!likely.contains(other)) likely[other] = one.log_prob;
    }
    if (!likely.contains(text)) likely[text] = *log_prob;
  }
  shown_.push_back(text);
  log_probs_.push_back(log_prob ? Json(*log_prob) : Json());
  tops_.push_back(std::move(likely));
  offsets_.push_back(offset_);
  offset_ += texts_.CharactersOf(token);
}

void CompletionLogProbs::AddPrompt(std::span<const int32_t> prompt, const engine::PromptLogProbs& log_probs,
                                   int64_t top) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == 0 || log_probs == nullptr || i > log_probs->size()) {
      Add(prompt[i], std::nullopt, {});
    } else {
      Add(prompt[i], (*log_probs)[i - 1].log_prob, FirstOf((*log_probs)[i - 1].top, top));
    }
  }
}

void CompletionLogProbs::Add(std::span<const engine::NewToken> tokens) {
  for (const engine::NewToken& token : tokens) Add(token.token, token.log_prob, token.top);
}

Json CompletionLogProbs::Take() {
  return {{"tokens", std::move(shown_)},
          {"token_logprobs", std::move(log_probs_)},
          {"top_logprobs", std::move(tops_)},
          {"text_offset", std::move(offsets_)}};
}

}  // namespace tdock::inference
