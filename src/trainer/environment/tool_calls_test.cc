#include "trainer/environment/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::environment {
namespace {

TEST(ToolCalls, AreSeparatedFromTheTextAroundThem) {
  const absl::StatusOr<text::Turn> turn =
      ParseToolCalls(ToolFormat::kHermes,
                     "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>\n"
                     "<tool_call>{\"name\": \"now\"}</tool_call>\n");
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_EQ(turn->role, text::Role::kAssistant);
  EXPECT_EQ(turn->content, "Let me see.");
  EXPECT_EQ(turn->fields,
            R"({"tool_calls":[{"function":{"arguments":{"a":[1,2]},"name":"add"},"id":"call_0","type":"function"},)"
            R"({"function":{"arguments":{},"name":"now"},"id":"call_1","type":"function"}]})");
}

TEST(ToolCalls, ATurnOfCallsAloneHasNoContent) {
  const absl::StatusOr<text::Turn> turn =
      ParseToolCalls(ToolFormat::kHermes, "\n<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>");
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_FALSE(turn->has_content);
}

TEST(ToolCalls, WithoutACallTheTextIsAsItWasSaid) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kNone}) {
    EXPECT_EQ(*ParseToolCalls(format, " {\"name\": 1} \n"),
              (text::Turn{.role = text::Role::kAssistant, .content = " {\"name\": 1} \n"}));
  }
  EXPECT_EQ(ParseToolCalls(ToolFormat::kNone, "<tool_call>{").value().content, "<tool_call>{");
}

TEST(ToolCalls, TheModelIsToldWhatIsWrongWithACall) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> said = {
      {"<tool_call>{\"name\": \"now\"}", {"no </tool_call>"}},
      {"now</tool_call>", {"</tool_call> without <tool_call>"}},
      {"<tool_call>now()</tool_call>", {"\"now()\" is "}},
      {"<tool_call>[]</tool_call>", {"\"[]\" is "}},
      {"<tool_call>{\"arguments\": {}}</tool_call>", {"no \"name\""}},
      {"<tool_call>{\"name\": \"\"}</tool_call>", {"no \"name\""}},
      {"<tool_call>{\"name\": \"now\", \"arguments\": \"x\"}</tool_call>", {"the \"arguments\" of ", "object"}},
      {"<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}</tool_call>", {"not JSON: "}},
      {"<tool_call>" + std::string(100, '[') + "</tool_call>", {" more than 16"}},
  };
  for (const auto& [text, names] : said) {
    const absl::Status status = ParseToolCalls(ToolFormat::kHermes, text).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, names)) << text;
    EXPECT_THAT(status.message(), Mentions({R"(<tool_call>{"name": "…", "arguments": {…}}</tool_call>)"}));
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "<tool_call>{\"name\": \"now\"}</tool_call>";
  EXPECT_THAT(ParseToolCalls(ToolFormat::kHermes, many).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"more than 64"}));
}

}  // namespace
}  // namespace tdock::environment
