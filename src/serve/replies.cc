#include "serve/replies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"

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

// Runs of tokens that were sampled with the same weights: their version, and how many they are.
std::vector<std::pair<int64_t, int64_t>> RunsOf(const Tokens& tokens) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const engine::NewToken& token : tokens) {
    if (runs.empty() || runs.back().first != token.version) runs.emplace_back(token.version, 0);
    ++runs.back().second;
  }
  return runs;
}

Json VersionsOf(const Tokens& tokens) {
  Json runs = Json::array();
  for (const auto& [version, count] : RunsOf(tokens)) runs.push_back({{"version", version}, {"tokens", count}});
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

// As text, and not by way of a Json: each token of each stream has an event.
std::string ChoiceOf(const Piece& piece, const ChoiceForm& form, const TokenTexts& texts) {
  const bool is_completion = form.form == Form::kCompletion;
  const std::string text = JsonText(Json(piece.text));
  std::string choice = absl::StrCat("{\"index\":", piece.index);
  if (is_completion) {
    absl::StrAppend(&choice, ",\"text\":", text);
  } else if (!form.stream) {
    absl::StrAppend(&choice, ",\"message\":{\"role\":\"assistant\",\"content\":", text, "}");
  } else if (piece.text.empty()) {
    choice += ",\"delta\":{}";
  } else {
    absl::StrAppend(&choice, ",\"delta\":{\"content\":", text, "}");
  }
  choice += ",\"logprobs\":";
  if (form.log_probs) {
    choice += JsonText(is_completion ? CompletionLogProbs(piece, texts) : ChatLogProbs(piece.tokens, texts));
  } else {
    choice += "null";
  }
  choice += ",\"finish_reason\":";
  choice += piece.finish ? absl::StrCat("\"", FinishNameOf(*piece.finish), "\"") : "null";
  if (form.token_ids) {
    const auto id = [](std::string* out, const engine::NewToken& token) { absl::StrAppend(out, token.token); };
    absl::StrAppend(&choice, ",\"token_ids\":[", absl::StrJoin(piece.tokens, ",", id), "]");
    if (piece.prompt != nullptr) {
      absl::StrAppend(&choice, ",\"prompt_token_ids\":[", absl::StrJoin(*piece.prompt, ","), "]");
    }
  }
  const auto run = [](std::string* out, const std::pair<int64_t, int64_t>& one) {
    absl::StrAppend(out, "{\"version\":", one.first, ",\"tokens\":", one.second, "}");
  };
  absl::StrAppend(&choice, ",\"weight_versions\":[", absl::StrJoin(RunsOf(piece.tokens), ",", run), "]}");
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
      model_(model),
      event_head_(Head(/*stream=*/true)) {}

// All before the list of choices.
std::string Replies::Head(bool stream) const {
  std::string head = JsonText(HeadOf(id_, ObjectOf(form_, stream), created_, model_));
  head.back() = ',';  // where the object ended
  return head + "\"choices\":";
}

std::string Replies::Whole(std::span<const Piece> answers, const Usage& usage) const {
  if (form_ == Form::kGenerate) {
    Json list = Json::array();
    for (const Piece& answer : answers) list.push_back(GeneratedOf(answer, id_, model_.instance, log_probs_));
    return JsonText(is_list_ ? list : list.at(0));
  }
  const auto choice = [&](std::string* out, const Piece& answer) {
    *out += ChoiceOf(answer, {form_, false, log_probs_, token_ids_}, *model_.texts);
  };
  return absl::StrCat(Head(/*stream=*/false), "[", absl::StrJoin(answers, ",", choice),
                      "],\"usage\":", JsonText(UsageOf(usage)), "}");
}

// Only the last event has the usage.
std::string Replies::EventWith(absl::string_view choices) const {
  return EventOf(absl::StrCat(event_head_, "[", choices, "]", with_usage_ ? ",\"usage\":null}" : "}"));
}

std::string Replies::Opening(int64_t index) const {
  if (form_ != Form::kChat) return "";
  return EventWith(JsonText(Json{{"index", index},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}));
}

std::string Replies::Event(const Piece& piece) const {
  return EventWith(ChoiceOf(piece, {form_, true, log_probs_, token_ids_}, *model_.texts));
}

std::string Replies::UsageEvent(const Usage& usage) const {
  return EventOf(absl::StrCat(event_head_, "[],\"usage\":", JsonText(UsageOf(usage)), "}"));
}

size_t CharactersOf(std::span<const engine::NewToken> tokens, const TokenTexts& texts) {
  size_t characters = 0;
  for (const engine::NewToken& token : tokens) characters += texts.CharactersOf(token.token);
  return characters;
}

std::string EventOf(const std::string& data) { return absl::StrCat("data: ", data, "\n\n"); }

}  // namespace tdock::serve
