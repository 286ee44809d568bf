#include "inference/protocol/ask_fields.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

// Makes messages, in the form of /v1/chat/completions, of the items of a conversation. A reply is one message: its
// thinking, its text and its calls are items that follow one another.
class Messages {
 public:
  Messages(Fields& fields, Ask& ask) : fields_(fields), ask_(ask) {}

  void Add(std::string role, Json content, std::string where) {
    Message message{.json = {{"role", std::move(role)}, {"content", std::move(content)}}, .where = std::move(where)};
    messages_.push_back(std::move(message));
  }

  // False if it cannot be read; then the problem is there. `where` is the item's place: "[3]".
  bool AddItem(const Json& item, const std::string& where) {
    if (!item.is_object()) return Fail(where, "must be an object");
    const std::string type = TextOf(item, "type").value_or("message");
    if (type == "message") return AddMessage(item, where);
    if (type == "reasoning") return AddReasoning(item, where);
    if (type == "function_call") return AddCall(item, where);
    if (type == "function_call_output") return AddResult(item, where);
    fields_.FailAt(where + ".type",
                   "is not message, reasoning, function_call or function_call_output, which are all that "
                   "this server reads",
                   "unsupported_value");
    return false;
  }

  void Read() {
    for (const Message& message : messages_) {
      if (!ReadMessage(message.json, message.where, fields_, ask_)) return;
    }
  }

  size_t size() const { return messages_.size(); }

 private:
  struct Message {
    Json json;
    std::string where;
  };

  static std::optional<std::string> TextOf(const Json& item, const char* name) {
    const auto found = item.find(name);
    return found != item.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  }

  bool Fail(const std::string& where, absl::string_view why) {
    fields_.FailAt(where, why);
    return false;
  }

  // The texts of parts such as {"type": "input_text", "text": …}, one after another.
  std::optional<std::string> JoinParts(const Json& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) {
      fields_.FailAt(where, "must be a text, or a list of parts");
      return std::nullopt;
    }
    std::string text;
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string part = absl::StrCat(where, "[", i, "]");
      const auto said = content[i].is_object() ? TextOf(content[i], "text") : std::nullopt;
      const auto type = content[i].is_object() ? TextOf(content[i], "type") : std::nullopt;
      constexpr const char* kTexts[] = {"input_text", "output_text", "text", "reasoning_text", "summary_text"};
      if (!type || std::none_of(std::begin(kTexts), std::end(kTexts), [&](const char* one) { return *type == one; })) {
        fields_.FailAt(part + ".type", "is not text, which is all that the model reads", "unsupported_value");
        return std::nullopt;
      }
      if (!said) {
        fields_.FailAt(part + ".text", "must be a text");
        return std::nullopt;
      }
      text += *said;
    }
    return text;
  }

  bool AddMessage(const Json& item, const std::string& where) {
    const auto role = TextOf(item, "role");
    if (!role) return Fail(where + ".role", "must be user, assistant, system or developer");
    const auto content = item.find("content");
    if (content == item.end()) return Fail(where + ".content", "is missing");
    auto text = JoinParts(*content, where + ".content");
    if (!text) return false;
    if (*role == "assistant") {
      Reply(where, /*wants_content=*/true)["content"] = *std::move(text);
    } else {
      Add(*role, *std::move(text), where);
    }
    return true;
  }

  bool AddReasoning(const Json& item, const std::string& where) {
    const auto content = item.find("content");
    if (content == item.end() || content->is_null()) return true;  // only a summary of it, which the model has not said
    auto text = JoinParts(*content, where + ".content");
    if (!text) return false;
    messages_.push_back({.json = {{"role", "assistant"}, {"reasoning_content", *std::move(text)}}, .where = where});
    return true;
  }

  bool AddCall(const Json& item, const std::string& where) {
    const auto id = TextOf(item, "call_id"), name = TextOf(item, "name"), arguments = TextOf(item, "arguments");
    if (!id) return Fail(where + ".call_id", "must be the call's id");
    if (!name || name->empty()) return Fail(where + ".name", "must be the function's name");
    if (!arguments) return Fail(where + ".arguments", "must be the text of a JSON object");
    Reply(where, /*wants_content=*/false)["tool_calls"].push_back(
        {{"id", *id}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", *arguments}}}});
    return true;
  }

  bool AddResult(const Json& item, const std::string& where) {
    const auto id = TextOf(item, "call_id");
    if (!id) return Fail(where + ".call_id", "must be the id of the call");
    const auto output = item.find("output");
    if (output == item.end()) return Fail(where + ".output", "is missing");
    auto text = JoinParts(*output, where + ".output");
    if (!text) return false;
    Add("tool", *std::move(text), where);
    messages_.back().json["tool_call_id"] = *id;
    return true;
  }

  // The reply that the last items are of, or else a new one.
  Json& Reply(const std::string& where, bool wants_content) {
    const bool goes_on =
        !messages_.empty() && messages_.back().json["role"] == "assistant" &&
        !(wants_content && (messages_.back().json.contains("content") || messages_.back().json.contains("tool_calls")));
    if (!goes_on) messages_.push_back({.json = {{"role", "assistant"}}, .where = where});
    return messages_.back().json;
  }

  Fields& fields_;
  Ask& ask_;
  std::vector<Message> messages_;
};

void ReadInput(Fields& fields, const AskLimits& limits, Ask& ask) {
  const auto instructions = fields.String({"instructions"});
  const Json* const input = fields.Take({"input"});
  if (input == nullptr) return fields.FailFor("input", "is missing: a text, or a list of items");
  Messages messages(fields, ask);
  if (instructions) messages.Add("system", *instructions, "");
  if (input->is_string()) {
    messages.Add("user", *input, "");
  } else if (!input->is_array() || input->empty()) {
    return fields.Fail("must be a text, or a list of at least one item");
  } else if (std::cmp_greater(input->size(), limits.max_messages)) {
    return fields.Fail(absl::StrCat("has ", input->size(), " items, and may have ", limits.max_messages,
                                    ": each needs a token of the model's context"),
                       "context_length_exceeded");
  } else {
    for (size_t i = 0; i < input->size(); ++i) {
      if (!messages.AddItem((*input)[i], absl::StrCat("[", i, "]"))) return;
    }
  }
  if (messages.size() == 0) return fields.Fail("has nothing that anybody says");
  messages.Read();
}

void ReadReasoning(Fields& fields, Ask& ask) {
  const Json* const reasoning = fields.Take({"reasoning"});
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) return fields.Fail("must be an object");
  Fields inner = fields.In(*reasoning);
  ask.reasoning_effort = inner.String({"effort"}).value_or("");
  inner.Ignore({"summary", "generate_summary"});  // replies have the reasoning itself
  inner.Finish();
}

// Log-probabilities, which "include" asks for.
void ReadIncluded(Fields& fields, const AskLimits& limits, Ask& ask) {
  const auto top = fields.Integer({"top_logprobs"}, 0, limits.max_top_log_probs);
  const Json* const include = fields.Take({"include"});
  if (include != nullptr && !include->is_array()) return fields.Fail("must be a list of names");
  const bool log_probs = include != nullptr && std::find(include->begin(), include->end(),
                                                         Json("message.output_text.logprobs")) != include->end();
  if (log_probs) ask.log_probs = top.value_or(0);
  if (top.value_or(0) > 0 && !log_probs) {
    fields.FailFor("top_logprobs", "needs \"include\": [\"message.output_text.logprobs\"]");
  }
}

constexpr DefaultField kResponsesDefaults[] = {
    {"background", "false", "answers are given at once"},
    {"conversation", "null", "this server keeps no conversations: send all of it as 'input'"},
    {"n", "1", "a response is one answer"},
    {"prompt_logprobs", "null", "/v1/chat/completions has the log-probabilities of prompts"},
    {"previous_response_id", "null", "this server keeps no responses: send the whole conversation as 'input'"},
    {"prompt", "null", "this server keeps no prompts"},
    {"truncation", "\"disabled\"", "an input that is too long is refused"},
};

// As OpenAI's replies repeat a request.
std::string Repeated(const Json& json, const Ask& ask) {
  const auto given = [&](const char* name, Json otherwise) {
    const auto found = json.find(name);
    return found == json.end() || found->is_null() ? otherwise : *found;
  };
  const Json text = given("text", Json::object());
  const bool has_format = text.is_object() && text.contains("format") && text["format"].is_object();
  return JsonText(
      Json{{"background", false},
           {"instructions", given("instructions", nullptr)},
           {"max_output_tokens", given("max_output_tokens", nullptr)},
           {"metadata", given("metadata", Json::object())},
           {"parallel_tool_calls", given("parallel_tool_calls", true)},
           {"previous_response_id", nullptr},
           {"reasoning",
            {{"effort", ask.reasoning_effort.empty() ? Json() : Json(ask.reasoning_effort)}, {"summary", nullptr}}},
           {"store", false},
           {"temperature", given("temperature", nullptr)},
           {"text", {{"format", has_format ? text["format"] : Json{{"type", "text"}}}}},
           {"tool_choice", given("tool_choice", "auto")},
           {"tools", given("tools", Json::array())},
           {"top_logprobs", given("top_logprobs", nullptr)},
           {"top_p", given("top_p", nullptr)},
           {"truncation", "disabled"},
           {"user", given("user", nullptr)}});
}

}  // namespace

void ReadResponses(const Json& json, Fields& fields, const AskLimits& limits, Ask& ask) {
  ReadInput(fields, limits, ask);
  ReadTools(fields, ToolForm::kFlat, ask);
  ReadTemplateFields(fields, ask);
  ReadTextFormat(fields, ask);
  ReadReasoning(fields, ask);
  ReadIncluded(fields, limits, ask);
  fields.Ignore({"max_tool_calls"});  // of tools that a server calls itself
  fields.RefuseOthers(kResponsesDefaults);
  ask.repeated = Repeated(json, ask);
}

}  // namespace tdock::inference
