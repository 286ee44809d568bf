#include "inference/protocol/ask_fields.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/turn_json.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

// The place in a message that text::ReadTurn() has refused: ".content[1].type"; empty if it is none of these.
std::string PlaceIn(const Json& message, absl::string_view why) {
  constexpr std::pair<absl::string_view, const char*> kPlaces[] = {{"role", ".role"},
                                                                   {"\"tool_calls\"", ".tool_calls"},
                                                                   {"\"function_call\"", ".function_call"},
                                                                   {"\"content\"", ".content"}};
  size_t first = absl::string_view::npos;
  std::string named;
  for (const auto& [name, place] : kPlaces) {  // the first one that it names: behind it may be words of the message
    if (why.find(name) >= first) continue;
    first = why.find(name);
    named = place;
  }
  if (named != ".content") return named;
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return ".content";
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string place = absl::StrCat(".content[", i, "]");
    if (!part.is_object()) return place;
    if (part.value("type", Json("text")) != "text") return place + ".type";
    if (!part.contains("text") || !part["text"].is_string()) return place + ".text";
  }
  return ".content";
}

bool CallsTools(const text::Turn& turn) {
  return !turn.fields.empty() && ReadOrderedJson(turn.fields).contains("tool_calls");
}

}  // namespace

bool ReadMessage(const Json& message, const std::string& where, Fields& fields, Ask& ask) {
  absl::StatusOr<text::Turn> turn = absl::UnknownError("");
  if (message.is_object() && message.contains("refusal")) {  // of a reply as clients repeat it
    Json said = message;
    said.erase("refusal");
    turn = text::ReadTurn(said);
  } else {
    turn = text::ReadTurn(message);
  }
  if (turn.ok()) {
    ask.turns.push_back(*std::move(turn));
    return true;
  }
  const absl::string_view why = turn.status().message();
  fields.FailAt(message.is_object() ? where + PlaceIn(message, why) : where, absl::StrCat("cannot be read: ", why));
  return false;
}

namespace {

// The messages of the field that was taken last.
void ReadMessages(const Json& messages, Fields& fields, const AskLimits& limits, Ask& ask) {
  if (!messages.is_array() || messages.empty()) return fields.Fail("must be a list of at least one message");
  if (std::cmp_greater(messages.size(), limits.max_messages)) {
    return fields.Fail(absl::StrCat("has ", messages.size(), " messages, and may have ", limits.max_messages,
                                    ": each needs a token of the model's context"),
                       "context_length_exceeded");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!ReadMessage(messages[i], absl::StrCat("[", i, "]"), fields, ask)) return;
  }
}

}  // namespace

void ReadTemplateFields(Fields& fields, Ask& ask) {
  if (const Json* const variables = fields.Take({"chat_template_kwargs"})) {
    if (!variables->is_object()) return fields.Fail("must be an object of the template's variables");
    if (!variables->empty()) ask.template_variables = JsonText(*variables);
  }
  if (const Json* const documents = fields.Take({"documents"})) {
    if (!documents->is_array()) return fields.Fail("must be a list");
    if (!documents->empty()) ask.context.documents = JsonText(*documents);
  }
  const std::optional<bool> prompt = fields.Bool({"add_generation_prompt"});
  ask.continues_final_turn = fields.Bool({"continue_final_message"}).value_or(false);
  if (ask.continues_final_turn && prompt.value_or(false)) {
    fields.Fail(
        "is true, and so is 'add_generation_prompt': the answer goes on with the last message, or begins a new one");
  } else if (ask.continues_final_turn && !ask.turns.empty() && ask.turns.back().role != text::Role::kAssistant) {
    fields.Fail("needs a last message of the assistant, with which the answer goes on");
  } else if (ask.continues_final_turn && !ask.turns.empty() && CallsTools(ask.turns.back())) {
    fields.Fail("needs a last message without calls, behind which no text can go on");
  }
  ask.generation_prompt = prompt.value_or(!ask.continues_final_turn);
}

void ReadConversation(Fields& fields, const AskLimits& limits, Ask& ask) {
  const Json* const messages = fields.Take({"messages"});
  if (messages == nullptr) return fields.FailFor("messages", "is missing: a conversation has at least one message");
  ReadMessages(*messages, fields, limits, ask);
  ReadTools(fields, ToolForm::kNested, ask);
  ReadTemplateFields(fields, ask);
}

}  // namespace tdock::inference
