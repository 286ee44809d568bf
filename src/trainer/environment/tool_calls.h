// The calls of tools in what a model says.
//
//   hermes:  Let me see.⏎<tool_call>{"name": "calculator", "arguments": {"expression": "37*24"}}</tool_call>
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat_template.h"

namespace tdock::environment {

enum class ToolFormat {
  kNone,   // the text is all: it calls nothing
  kHermes  // <tool_call>{"name": …, "arguments": {…}}</tool_call>, as Qwen and Hermes models write them
};

// What the model said as a turn of the assistant. Its calls are the list "tool_calls" of its fields, as chat templates
// expect them, with the ids "call_0", "call_1", …; its content is then the text around them, without white space at its
// ends, and without a call all that was said. InvalidArgument for calls that cannot be understood, in words that are
// meant for the model.
absl::StatusOr<text::Turn> ParseToolCalls(ToolFormat format, absl::string_view said);

}  // namespace tdock::environment
