// Reads the parts that requests are made of. Internal to this module.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/fields.h"

namespace tdock::inference {

// How answers are sampled, and tokens: in sampling_fields.cc.

inline constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();

// Token ids, of the field that was taken last.
std::optional<std::vector<int32_t>> ReadTokens(const nlohmann::ordered_json& value, Fields& fields);

// `min_max_tokens`: the least number of tokens that an answer may be bounded by.
SamplingAsk ReadSamplingFields(Fields& fields, const AskLimits& limits, int64_t min_max_tokens = 1);

// Fields that cannot change an answer, whatever they say, and those that have to say what is the default.
void ReadWhatChangesNothing(Fields& fields);

// Tools that the model may or must call, and grammars: in format_fields.cc.

enum class ToolForm {
  kNested,  // {"type": "function", "function": {"name": …}}, of /v1/chat/completions
  kFlat     // {"type": "function", "name": …}, of /v1/responses
};

// "tools", "tool_choice" and "parallel_tool_calls". A call that must come makes the ask's grammar.
void ReadTools(Fields& fields, ToolForm form, Ask& ask);

// "response_format" of OpenAI, "structured_outputs" and "guided_…" of vLLM.
void ReadFormats(Fields& fields, const AskLimits& limits, Ask& ask);
// "text" of /v1/responses.
void ReadTextFormat(Fields& fields, Ask& ask);

// Conversations, and how a template renders them: in chat_fields.cc.

// One message of the field that was taken last; `where` is its place there: "[3]". False if it cannot be read; then the
// problem is there.
bool ReadMessage(const nlohmann::ordered_json& message, const std::string& where, Fields& fields, Ask& ask);

// The variables of the template, and how the conversation ends.
void ReadTemplateFields(Fields& fields, Ask& ask);

// A conversation in the form of /v1/chat/completions: messages, tools, and how they are rendered.
void ReadConversation(Fields& fields, const AskLimits& limits, Ask& ask);

// The fields of /v1/responses alone: in responses_fields.cc.

// `json`: the whole body.
void ReadResponses(const nlohmann::ordered_json& json, Fields& fields, const AskLimits& limits, Ask& ask);

}  // namespace tdock::inference
