#include "text/replies/reply_forms.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

constexpr absl::string_view kThink = "<think>", kThinkEnd = "</think>";

// In the order of ReplyForm.
const std::vector<ReplyMarks>& AllMarks() {
  static const auto* const kMarks = new std::vector<ReplyMarks>{
      {.name = "plain"},
      {.name = "hermes",
       .reasoning_begin = kThink,
       .reasoning_end = kThinkEnd,
       .calls_begin = {"<tool_call>"},
       .calls_end = {"</tool_call>"},
       .example = R"(<tool_call>{"name": "…", "arguments": {…}}</tool_call>)"},
      {.name = "llama3",
       .reasoning_begin = kThink,
       .reasoning_end = kThinkEnd,
       .calls_begin = {"<|python_tag|>"},
       .example = R"({"name": "…", "parameters": {…}})"},
      {.name = "mistral",
       .reasoning_begin = "[THINK]",
       .reasoning_end = "[/THINK]",
       .reasoning_anywhere = true,
       .calls_begin = {"[TOOL_CALLS]"},
       .others = {"[ARGS]", "[CALL_ID]"},
       .example = "[TOOL_CALLS]name[ARGS]{…}"},
      {.name = "deepseek",
       .reasoning_begin = kThink,
       .reasoning_end = kThinkEnd,
       .calls_begin = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜DSML｜function_calls>",
                       "<｜DSML｜tool_calls>"},
       .calls_end = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "</｜DSML｜function_calls>",
                     "</｜DSML｜tool_calls>"},
       .others = {"<｜tool▁sep｜>"},
       .example =
           "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {.name = "harmony",
       .reasoning_begin = "<|channel|>analysis<|message|>",
       .reasoning_end = "<|end|>",
       .calls_begin = {"<|start|>"},
       .calls_end = {"<|end|>", "<|call|>", "<|return|>"},
       .others = {"<|constrain|>"},
       .example = "<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>"},
      {.name = "glm",
       .reasoning_begin = kThink,
       .reasoning_end = kThinkEnd,
       .calls_begin = {"<tool_call>"},
       .calls_end = {"</tool_call>"},
       .others = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
       .example = "<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>"},
      {.name = "gemma",
       .reasoning_begin = "<|channel>thought",
       .reasoning_end = "<channel|>",
       .reasoning_anywhere = true,
       .calls_begin = {"<start_function_call>", "<|tool_call>"},
       .calls_end = {"<end_function_call>", "<tool_call|>"},
       .others = {"<escape>", "<|\"|>"},
       .example = "<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>"},
      {.name = "qwen_coder",
       .reasoning_begin = kThink,
       .reasoning_end = kThinkEnd,
       .calls_begin = {"<tool_call>", "<function="},
       .calls_end = {"</tool_call>"},
       .others = {"</function>", "<parameter=", "</parameter>"},
       .example = "<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"},
  };
  return *kMarks;
}

}  // namespace

const ReplyMarks& MarksOf(ReplyForm form) { return AllMarks()[static_cast<size_t>(form)]; }

std::vector<std::string> ReplyFormNames() {
  std::vector<std::string> names;
  for (const ReplyMarks& marks : AllMarks()) names.emplace_back(marks.name);
  return names;
}

absl::string_view NameOf(ReplyForm form) { return MarksOf(form).name; }

absl::StatusOr<ReplyForm> ReplyFormNamed(absl::string_view name) {
  for (size_t i = 0; i < AllMarks().size(); ++i) {
    if (AllMarks()[i].name == name) return static_cast<ReplyForm>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no form of replies ", Quoted(name), "; the forms are ",
                                                 absl::StrJoin(ReplyFormNames(), ", ")));
}

ReplyForm ReplyFormOf(const ChatTemplate& chat_template) {
  // The first mark that the template spells decides: some contain what others have, too.
  constexpr std::array<std::pair<absl::string_view, ReplyForm>, 11> kSigns = {{
      {"<parameter=", ReplyForm::kQwenCoder},
      {"<arg_key>", ReplyForm::kGlm},
      {"<tool_call>", ReplyForm::kHermes},
      {"[TOOL_CALLS]", ReplyForm::kMistral},
      {"[THINK]", ReplyForm::kMistral},
      {"<｜tool▁calls▁begin｜>", ReplyForm::kDeepSeek},
      {"｜DSML｜", ReplyForm::kDeepSeek},
      {"<start_function_call>", ReplyForm::kGemma},
      {"<|tool_call>", ReplyForm::kGemma},
      {"<|channel|>", ReplyForm::kHarmony},
      {"<|python_tag|>", ReplyForm::kLlama3},
  }};
  for (const auto& [sign, form] : kSigns) {
    if (chat_template.Spells(sign)) return form;
  }
  const bool is_llama = chat_template.Spells("<|start_header_id|>") || chat_template.Spells("<|header_start|>");
  if (is_llama && chat_template.Spells(R"("parameters": )")) return ReplyForm::kLlama3;
  // A model that reasons and calls nothing writes one mark alone.
  return chat_template.Spells(kThinkEnd) ? ReplyForm::kHermes : ReplyForm::kPlain;
}

bool HasReasoning(ReplyForm form, const ChatTemplate& chat_template) {
  if (form == ReplyForm::kHarmony) return true;
  const ReplyMarks& marks = MarksOf(form);
  return !marks.reasoning_end.empty() && chat_template.Spells(marks.reasoning_end);
}

bool OpensReasoning(ReplyForm form, absl::string_view prompt) {
  const absl::string_view begin = MarksOf(form).reasoning_begin;
  return !begin.empty() && absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), begin);
}

bool IsReplyMark(ReplyForm form, absl::string_view special) {
  if (special.empty()) return false;
  const ReplyMarks& marks = MarksOf(form);
  const auto has = [&](absl::string_view mark) { return absl::StrContains(mark, special); };
  const auto any = [&](const std::vector<absl::string_view>& of) { return std::any_of(of.begin(), of.end(), has); };
  return has(marks.reasoning_begin) || has(marks.reasoning_end) || any(marks.calls_begin) || any(marks.calls_end) ||
         any(marks.others);
}

}  // namespace tdock::text
