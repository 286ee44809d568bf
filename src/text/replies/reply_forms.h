// The forms in which models write replies. docs/environments.md shows a call in each.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat_template.h"

namespace tdock::text {

enum class ReplyForm {
  kPlain,     // text alone: neither reasoning nor calls
  kHermes,    // Hermes and Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>
  kLlama3,    // {"name": …, "parameters": {…}}, or the same behind <|python_tag|>
  kMistral,   // [TOOL_CALLS][{"name": …, "arguments": {…}}], [TOOL_CALLS]name[ARGS]{…}
  kDeepSeek,  // the forms of V3, R1 and V3.1, and that of V3.2 and V4 with DSML
  kHarmony,   // gpt-oss: messages in channels
  kGlm,       // GLM 4.5 and later: <tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>
  kGemma,     // FunctionGemma and Gemma 4: call:name{key:<escape>text<escape>}
  kQwenCoder,  // Qwen3-Coder and Qwen3.5: <tool_call><function=name><parameter=key>…</parameter></function></tool_call>
};

// "plain", "hermes", "llama3", "mistral", "deepseek", "harmony", "glm", "gemma", "qwen_coder".
std::vector<std::string> ReplyFormNames();
absl::string_view NameOf(ReplyForm form);
// InvalidArgument, with the names, for another one.
absl::StatusOr<ReplyForm> ReplyFormNamed(absl::string_view name);

// The form whose marks the template spells; kPlain: it spells none.
ReplyForm ReplyFormOf(const ChatTemplate& chat_template);

// True if the template spells the marks of the form's reasoning.
bool HasReasoning(ReplyForm form, const ChatTemplate& chat_template);

// True if reasoning has begun where this text of a prompt ends, as where a template asks for a reply with "<think>\n".
bool OpensReasoning(ReplyForm form, absl::string_view prompt);

// True for a special token that is part of the form, so that ReplyParser needs its text.
bool IsReplyMark(ReplyForm form, absl::string_view special);

// Marks of a form.
struct ReplyMarks {
  absl::string_view name = {};
  absl::string_view reasoning_begin = {}, reasoning_end = {};
  bool reasoning_anywhere = false;                  // not only before everything else
  std::vector<absl::string_view> calls_begin = {};  // each begins calls
  std::vector<absl::string_view> calls_end = {};    // each ends a call that cannot be read
  std::vector<absl::string_view> others = {};
  absl::string_view example = {};  // of a call, for messages to models
};
const ReplyMarks& MarksOf(ReplyForm form);

}  // namespace tdock::text
