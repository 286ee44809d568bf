#include "serve/replies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tdock::serve {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<engine::NewToken>;

Json BytesOf(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

Json IdsOf(const Tokens& tokens) {
  Json ids = Json::array();
  for (const engine::NewToken& token : tokens) ids.push_back(token.token);
  return ids;
}

// Runs of tokens that were sampled with the same weights.
Json VersionsOf(const Tokens& tokens) {
  Json runs = Json::array();
  for (const engine::NewToken& token : tokens) {
    if (runs.empty() || runs.back()["version"] != token.version) {
      runs.push_back({{"version", token.version}, {"tokens", 0}});
    }
    runs.back()["tokens"] = runs.back()["tokens"].get<int64_t>() + 1;
  }
  return runs;
}

// {"content": [{"token", "logprob", "bytes", "top_logprobs": […]}, …]}
Json ChatLogProbs(const Tokens& tokens, const TokenTexts& texts) {
  const auto entry = [&](int32_t token, float log_prob) {
    return Json{{"token", texts.TextOf(token)}, {"logprob", log_prob}, {"bytes", BytesOf(texts.BytesOf(token))}};
  };
  Json content = Json::array();
  for (const engine::NewToken& token : tokens) {
    Json one = entry(token.token, token.log_prob);
    one["top_logprobs"] = Json::array();
    for (const engine::TokenLogProb& top : token.top) one["top_logprobs"].push_back(entry(top.token, top.log_prob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

// Lists beside one another. Where two of the most likely tokens have the same text, the more likely one is shown.
Json CompletionLogProbs(const Piece& piece, const TokenTexts& texts) {
  Json shown = Json::array(), log_probs = Json::array(), tops = Json::array(), offsets = Json::array();
  size_t offset = piece.text_offset;
  for (const engine::NewToken& token : piece.tokens) {
    const std::string text = texts.TextOf(token.token);
    Json top = Json::object();
    for (const engine::TokenLogProb& one : token.top) {
      const std::string other = texts.TextOf(one.token);
      if (!top.contains(other)) top[other] = one.log_prob;
    }
    if (!top.contains(text)) top[text] = token.log_prob;
    shown.push_back(text);
    log_probs.push_back(token.log_prob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += texts.CharactersOf(token.token);
  }
  return {{"tokens", std::move(shown)},
          {"token_logprobs", std::move(log_probs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json FinishOf(const Piece& piece) { return piece.finish ? Json(FinishNameOf(*piece.finish)) : Json(nullptr); }

Json UsageOf(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// SGLang's: [[log-probability, token, null], …]
Json PairsOf(const Tokens& tokens) {
  Json pairs = Json::array();
  for (const engine::NewToken& token : tokens) pairs.push_back(Json::array({token.log_prob, token.token, nullptr}));
  return pairs;
}

Json TopPairsOf(const Tokens& tokens) {
  Json positions = Json::array();
  for (const engine::NewToken& token : tokens) {
    Json pairs = Json::array();
    for (const engine::TokenLogProb& top : token.top) pairs.push_back(Json::array({top.log_prob, top.token, nullptr}));
    positions.push_back(std::move(pairs));
  }
  return positions;
}

Json GeneratedOf(const Piece& answer, const std::string& id, const std::string& instance, bool log_probs) {
  Json meta = {{"id", id},
               {"instance", instance},
               {"finish_reason", {{"type", FinishNameOf(answer.finish.value_or(engine::FinishReason::kAborted))}}},
               {"prompt_tokens", answer.prompt->size()},
               {"completion_tokens", answer.tokens.size()},
               {"weight_version", absl::StrCat(answer.tokens.empty() ? answer.version : answer.tokens.back().version)},
               {"weight_versions", VersionsOf(answer.tokens)}};
  if (log_probs) {
    meta["output_token_logprobs"] = PairsOf(answer.tokens);
    meta["output_top_logprobs"] = TopPairsOf(answer.tokens);
  }
  return {{"text", answer.text}, {"output_ids", IdsOf(answer.tokens)}, {"meta_info", std::move(meta)}};
}

const char* ObjectOf(Form form, bool stream) {
  if (form == Form::kCompletion) return "text_completion";
  return stream ? "chat.completion.chunk" : "chat.completion";
}

Json HeadOf(const std::string& id, const char* object, int64_t created, const ServedModel& model) {
  return {{"id", id},
          {"object", object},
          {"created", created},
          {"model", model.names.front()},
          {"system_fingerprint", absl::StrCat("tdock-", model.instance)}};
}

struct ChoiceForm {
  Form form;
  bool stream, log_probs, token_ids;
};

Json ChoiceOf(const Piece& piece, const ChoiceForm& form, const TokenTexts& texts) {
  Json choice = {{"index", piece.index}};
  if (form.form == Form::kCompletion) {
    choice["text"] = piece.text;
    choice["logprobs"] = form.log_probs ? CompletionLogProbs(piece, texts) : Json(nullptr);
  } else {
    if (form.stream) {
      choice["delta"] = piece.text.empty() ? Json::object() : Json{{"content", piece.text}};
    } else {
      choice["message"] = {{"role", "assistant"}, {"content", piece.text}};
    }
    choice["logprobs"] = form.log_probs ? ChatLogProbs(piece.tokens, texts) : Json(nullptr);
  }
  choice["finish_reason"] = FinishOf(piece);
  if (form.token_ids) {
    choice["token_ids"] = IdsOf(piece.tokens);
    if (piece.prompt != nullptr) choice["prompt_token_ids"] = *piece.prompt;
  }
  choice["weight_versions"] = VersionsOf(piece.tokens);
  return choice;
}

}  // namespace

const char* FinishNameOf(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kEndToken:
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
    case engine::FinishReason::kBudget:
      return "length";
    case engine::FinishReason::kDeadline:
      return "timeout";
    case engine::FinishReason::kAborted:
      break;
  }
  return "abort";
}

Replies::Replies(const Ask& ask, std::string id, int64_t created, const ServedModel& model)
    : form_(ask.form),
      is_list_(ask.is_list || ask.n > 1),
      log_probs_(ask.log_probs.has_value()),
      token_ids_(ask.token_ids),
      with_usage_(ask.include_usage),
      id_(std::move(id)),
      created_(created),
      model_(model) {}

std::string Replies::Whole(std::span<const Piece> answers, const Usage& usage) const {
  Json list = Json::array();
  for (const Piece& answer : answers) {
    list.push_back(form_ == Form::kGenerate ? GeneratedOf(answer, id_, model_.instance, log_probs_)
                                            : ChoiceOf(answer, {form_, false, log_probs_, token_ids_}, *model_.texts));
  }
  if (form_ == Form::kGenerate) return Dump(is_list_ ? list : list.at(0));
  Json json = HeadOf(id_, ObjectOf(form_, false), created_, model_);
  json["choices"] = std::move(list);
  json["usage"] = UsageOf(usage);
  return Dump(json);
}

std::string Replies::Opening(int64_t index) const {
  if (form_ != Form::kChat) return "";
  Json json = HeadOf(id_, ObjectOf(form_, true), created_, model_);
  json["choices"] = Json::array({{{"index", index},
                                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", nullptr},
                                  {"finish_reason", nullptr}}});
  if (with_usage_) json["usage"] = nullptr;
  return EventOf(Dump(json));
}

std::string Replies::Event(const Piece& piece) const {
  Json json = HeadOf(id_, ObjectOf(form_, true), created_, model_);
  json["choices"] = Json::array({ChoiceOf(piece, {form_, true, log_probs_, token_ids_}, *model_.texts)});
  if (with_usage_) json["usage"] = nullptr;  // which only the last event has
  return EventOf(Dump(json));
}

std::string Replies::UsageEvent(const Usage& usage) const {
  Json json = HeadOf(id_, ObjectOf(form_, true), created_, model_);
  json["choices"] = Json::array();
  json["usage"] = UsageOf(usage);
  return EventOf(Dump(json));
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

size_t CharactersOf(std::span<const engine::NewToken> tokens, const TokenTexts& texts) {
  size_t characters = 0;
  for (const engine::NewToken& token : tokens) characters += texts.CharactersOf(token.token);
  return characters;
}

std::string EventOf(const std::string& data) { return absl::StrCat("data: ", data, "\n\n"); }

}  // namespace tdock::serve
