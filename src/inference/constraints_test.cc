#include "inference/constraints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "text/replies/reply_parser.h"

namespace tdock::inference {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kFunction[] = "add";

GrammarSpec Calls() {
  return {.kind = GrammarSpec::Kind::kCalls, .calls = {{.name = kFunction, .parameters = R"({"type": "object"})"}}};
}

// Text that the grammar allows with one argument, written `count` times.
std::string Written(const GrammarSpec& spec, int count) {
  const CallRule& rule = spec.calls.front();
  const bool is_json = rule.before.empty() && rule.after.empty();
  const std::string arguments =
      spec.tags ? absl::StrCat(spec.tags->before_name, "a", spec.tags->before_value, "1", spec.tags->after_value)
                : R"({"a": 1})";
  const std::string call = is_json ? absl::StrCat(R"({"name": ")", rule.name, R"(", "arguments": )", arguments, "}")
                                   : absl::StrCat(rule.before, arguments, rule.after);
  std::string text = spec.before_calls;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : spec.between_calls, spec.before_call, call, spec.after_call);
  }
  return text + spec.after_calls;
}

TEST(SpellCalls, IsReadAsItIsSpelled) {
  using text::ReplyForm;
  const std::vector<std::pair<ReplyForm, std::string>> forms = {
      {ReplyForm::kHermes, "<tool_call>"},
      {ReplyForm::kLlama3, "<|python_tag|>"},
      {ReplyForm::kMistral, "[TOOL_CALLS]"},
      {ReplyForm::kMistral, "[TOOL_CALLS] [ARGS]"},
      {ReplyForm::kDeepSeek, "<｜tool▁calls▁begin｜> ```json"},
      {ReplyForm::kDeepSeek, "<｜tool▁calls▁begin｜>"},
      {ReplyForm::kHarmony, "<|channel|>"},
      {ReplyForm::kGlm, "<tool_call> <arg_key>"},
      {ReplyForm::kQwenCoder, "<tool_call> <parameter="},
  };
  for (const auto& [form, marks] : forms) {
    SCOPED_TRACE(absl::StrCat(text::NameOf(form), " ", marks));
    const auto chat_template = text::ChatTemplate::Parse(absl::StrCat(marks, "{{ tools }}{{ messages }}"));
    ASSERT_TRUE(chat_template.ok());
    for (const bool reasoning_open : {false, true}) {
      if (reasoning_open && form == ReplyForm::kHarmony) continue;  // its prompts never begin it
      const auto spec = SpellCalls(Calls(), form, *chat_template, reasoning_open);
      ASSERT_TRUE(spec.ok()) << spec.status();
      for (const int count : {1, 2}) {
        if (spec->one_call && count > 1) continue;
        const std::string text = Written(*spec, count);
        const text::ParsedReply reply = text::ParseReply(
            form, text,
            {.reasoning_open = reasoning_open,
             .tools = R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
                 "properties": {"a": {"type": "integer"}}}}}])"});
        EXPECT_THAT(reply.broken, IsEmpty()) << text;
        EXPECT_THAT(reply.content, IsEmpty()) << text;
        EXPECT_THAT(reply.reasoning, IsEmpty()) << text;
        ASSERT_EQ(reply.calls.size(), static_cast<size_t>(count)) << text;
        EXPECT_EQ(reply.calls.back().name, kFunction);
        EXPECT_THAT(reply.calls.back().arguments, testing::AnyOf(R"({"a": 1})", R"({"a":1})"));
      }
    }
  }
}

TEST(SpellCalls, NamesFormsInWhichNoCallCanBeForced) {
  const auto spell = [](text::ReplyForm form, const char* marks) {
    return SpellCalls(Calls(), form, text::ChatTemplate::Parse(marks).value(), false).status();
  };
  EXPECT_THAT(spell(text::ReplyForm::kPlain, "a"), Fails(absl::StatusCode::kUnimplemented, {"plain"}));
  EXPECT_THAT(spell(text::ReplyForm::kGemma, "a"), Fails(absl::StatusCode::kUnimplemented, {"gemma"}));
  EXPECT_THAT(spell(text::ReplyForm::kDeepSeek, "｜DSML｜"), Fails(absl::StatusCode::kUnimplemented, {"deepseek"}));
}

}  // namespace
}  // namespace tdock::inference
