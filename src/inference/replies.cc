#include "inference/replies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<engine::NewToken>;

// Runs of tokens that were sampled with the same weights: their version, and how many they are.
std::vector<std::pair<int64_t, int64_t>> RunsOf(const Tokens& tokens) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const engine::NewToken& token : tokens) {
    if (runs.empty() || runs.back().first != token.version) runs.emplace_back(token.version, 0);
    ++runs.back().second;
  }
  return runs;
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
               {"finish_reason", {{"type", FinishNameOf(answer)}}},
               {"prompt_tokens", answer.prompt->size()},
               {"completion_tokens", answer.tokens.size()},
               {"weight_version", absl::StrCat(answer.tokens.empty() ? answer.version : answer.tokens.back().version)},
               {"weight_versions", VersionsOf(answer.tokens)}};
  if (log_probs) {
    meta["output_token_logprobs"] = PairsOf(answer.tokens);
    meta["output_top_logprobs"] = TopPairsOf(answer.tokens);
  }
  return {{"text", ContentOf(answer)}, {"output_ids", IdsOf(answer.tokens)}, {"meta_info", std::move(meta)}};
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

// The reasoning and the calls of a piece, and its text.
struct Said {
  std::string content = {}, reasoning = {};
  Json calls = Json::array();
};

// A call's first delta has its id and name; more of its arguments follow by its number.
void AddCall(const text::ReplyDelta& delta, bool stream, Said& said) {
  const bool begins = delta.kind == text::ReplyDelta::Kind::kCall;
  if (!begins && !said.calls.empty()) {
    Json& last = said.calls.back();
    if (!stream || last["index"] == delta.call) {
      last["function"]["arguments"].get_ref<std::string&>() += delta.text;
      return;
    }
  }
  Json call = Json::object();
  if (stream) call["index"] = delta.call;
  if (begins) {
    call["id"] = delta.id;
    call["type"] = "function";
    call["function"] = {{"name", delta.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", delta.text}};
  }
  said.calls.push_back(std::move(call));
}

Said SaidOf(const Piece& piece, bool stream) {
  Said said;
  for (const text::ReplyDelta& delta : piece.deltas) {
    switch (delta.kind) {
      case text::ReplyDelta::Kind::kContent:
        said.content += delta.text;
        break;
      case text::ReplyDelta::Kind::kReasoning:
        said.reasoning += delta.text;
        break;
      case text::ReplyDelta::Kind::kCall:
      case text::ReplyDelta::Kind::kArguments:
        AddCall(delta, stream, said);
        break;
    }
  }
  return said;
}

// The message of a chat's answer, or what is added to it. "reasoning" is vLLM's name of "reasoning_content".
std::string MessageOf(const Piece& piece, bool stream) {
  const Said said = SaidOf(piece, stream);
  std::vector<std::string> parts;
  if (!stream) parts.emplace_back(R"("role":"assistant")");
  const bool has_more = !said.reasoning.empty() || !said.calls.empty();
  if (!said.content.empty() || (!stream && !has_more)) {
    parts.push_back(absl::StrCat("\"content\":", JsonText(Json(said.content))));
  } else if (!stream) {
    parts.emplace_back("\"content\":null");
  }
  if (!said.reasoning.empty()) {
    const std::string reasoning = JsonText(Json(said.reasoning));
    parts.push_back(absl::StrCat("\"reasoning_content\":", reasoning, ",\"reasoning\":", reasoning));
  }
  if (!said.calls.empty()) parts.push_back(absl::StrCat("\"tool_calls\":", JsonText(said.calls)));
  return absl::StrCat("{", absl::StrJoin(parts, ","), "}");
}

}  // namespace

Json IdsOf(const Tokens& tokens) {
  Json ids = Json::array();
  for (const engine::NewToken& token : tokens) ids.push_back(token.token);
  return ids;
}

Json VersionsOf(const Tokens& tokens) {
  Json runs = Json::array();
  for (const auto& [version, count] : RunsOf(tokens)) runs.push_back({{"version", version}, {"tokens", count}});
  return runs;
}

std::string ContentOf(const Piece& piece) {
  std::string content;
  for (const text::ReplyDelta& delta : piece.deltas) {
    if (delta.kind == text::ReplyDelta::Kind::kContent) content += delta.text;
  }
  return content;
}

const char* FinishNameOf(const Piece& piece) {
  const engine::FinishReason finish = piece.finish.value_or(engine::FinishReason::kAborted);
  const bool by_itself = finish == engine::FinishReason::kEndToken || finish == engine::FinishReason::kStop;
  return by_itself && piece.calls_tools ? "tool_calls" : FinishNameOf(finish);
}

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
      token_ids_(ask.token_ids),
      with_usage_(ask.include_usage),
      echo_(ask.echo),
      log_probs_(ask.log_probs),
      prompt_log_probs_(ask.prompt_log_probs),
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

std::string Replies::LogProbsOfChoice(const Piece& piece) const {
  if (!log_probs_) return "null";
  if (form_ != Form::kCompletion) return JsonText(Json{{"content", LogProbsOf(piece.tokens, *model_.texts)}});
  CompletionLogProbs lists(piece.text_offset, *model_.texts);
  if (echo_ && piece.prompt != nullptr) lists.AddPrompt(*piece.prompt, piece.prompt_log_probs, *log_probs_);
  lists.Add(piece.tokens);
  return JsonText(lists.Take());
}

// As text, and not by way of a Json: each token of each stream has an event.
std::string Replies::ChoiceOf(const Piece& piece, bool stream) const {
  std::string choice = absl::StrCat("{\"index\":", piece.index);
  if (form_ == Form::kCompletion) {
    std::string text = ContentOf(piece);
    if (echo_ && piece.prompt != nullptr) text.insert(0, model_.tokenizer->Decode(*piece.prompt).value_or(""));
    absl::StrAppend(&choice, ",\"text\":", JsonText(Json(text)));
  } else {
    absl::StrAppend(&choice, stream ? ",\"delta\":" : ",\"message\":", MessageOf(piece, stream));
  }
  absl::StrAppend(&choice, ",\"logprobs\":", LogProbsOfChoice(piece), ",\"finish_reason\":");
  choice += piece.finish ? absl::StrCat("\"", FinishNameOf(piece), "\"") : "null";
  if (token_ids_) {
    const auto id = [](std::string* out, const engine::NewToken& token) { absl::StrAppend(out, token.token); };
    absl::StrAppend(&choice, ",\"token_ids\":[", absl::StrJoin(piece.tokens, ",", id), "]");
    if (piece.prompt != nullptr) {
      absl::StrAppend(&choice, ",\"prompt_token_ids\":[", absl::StrJoin(*piece.prompt, ","), "]");
    }
  }
  if (prompt_log_probs_ && form_ == Form::kCompletion && piece.prompt != nullptr) {
    absl::StrAppend(&choice, ",\"prompt_logprobs\":",
                    PromptLogProbsText(*piece.prompt, piece.prompt_log_probs, *prompt_log_probs_, *model_.texts));
  }
  const auto run = [](std::string* out, const std::pair<int64_t, int64_t>& one) {
    absl::StrAppend(out, "{\"version\":", one.first, ",\"tokens\":", one.second, "}");
  };
  absl::StrAppend(&choice, ",\"weight_versions\":[", absl::StrJoin(RunsOf(piece.tokens), ",", run), "]}");
  return choice;
}

std::string Replies::Whole(std::span<const Piece> answers, const Usage& usage) {
  if (form_ == Form::kGenerate) {
    Json list = Json::array();
    for (const Piece& answer : answers)
      list.push_back(GeneratedOf(answer, id_, model_.instance, log_probs_.has_value()));
    return JsonText(is_list_ ? list : list.at(0));
  }
  const auto choice = [&](std::string* out, const Piece& answer) { *out += ChoiceOf(answer, /*stream=*/false); };
  std::string whole = absl::StrCat(Head(/*stream=*/false), "[", absl::StrJoin(answers, ",", choice),
                                   "],\"usage\":", JsonText(UsageOf(usage)));
  if (prompt_log_probs_ && form_ == Form::kChat) {
    const Piece& first = answers.front();
    absl::StrAppend(&whole, ",\"prompt_logprobs\":",
                    PromptLogProbsText(*first.prompt, first.prompt_log_probs, *prompt_log_probs_, *model_.texts));
  }
  return whole + "}";
}

// Only the last event has the usage.
std::string Replies::EventWith(absl::string_view choices) const {
  return EventOf(absl::StrCat(event_head_, "[", choices, "]", with_usage_ ? ",\"usage\":null}" : "}"));
}

std::string Replies::Opening(int64_t index) {
  if (form_ != Form::kChat) return "";
  return EventWith(JsonText(Json{{"index", index},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}));
}

std::string Replies::Event(const Piece& piece) { return EventWith(ChoiceOf(piece, /*stream=*/true)); }

std::string Replies::Closing(const Usage& usage) {
  const std::string of_usage =
      with_usage_ ? EventOf(absl::StrCat(event_head_, "[],\"usage\":", JsonText(UsageOf(usage)), "}")) : "";
  return of_usage + kStreamEnd;
}

std::string EventOf(const std::string& data) { return absl::StrCat("data: ", data, "\n\n"); }

}  // namespace tdock::inference
