#include "inference/responses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tdock::inference {
namespace {

using Kind = text::ReplyDelta::Kind;
using testing::ElementsAre;

std::vector<std::string> TypesOf(const std::vector<nlohmann::ordered_json>& events) {
  std::vector<std::string> types;
  for (const auto& event : events) types.push_back(event["type"].get<std::string>());
  return types;
}

TEST(ResponseItems, HasAnItemForReasoningTextAndEachCall) {
  ResponseItems items("r");
  items.Add({.kind = Kind::kReasoning, .text = "hm"});
  items.AddLogProbs({{{"token", "a"}}});
  items.Add({.kind = Kind::kContent, .text = "a"});
  items.Add({.kind = Kind::kContent, .text = "b"});
  items.Add({.kind = Kind::kCall, .call = 0, .id = "1", .text = "f"});
  items.Add({.kind = Kind::kArguments, .call = 0, .text = "{\"x\""});
  items.Add({.kind = Kind::kArguments, .call = 0, .text = ":1}"});
  items.Add({.kind = Kind::kCall, .call = 1, .id = "2", .text = "g"});
  items.Add({.kind = Kind::kArguments, .call = 1, .text = "{}"});
  items.Finish();
  const auto& made = items.items();
  ASSERT_EQ(made.size(), 4U);
  EXPECT_EQ(made[0]["type"], "reasoning");
  EXPECT_EQ(made[0]["content"][0]["text"], "hm");
  EXPECT_EQ(made[1]["type"], "message");
  EXPECT_EQ(made[1]["content"][0]["text"], "ab");
  EXPECT_EQ(made[1]["content"][0]["logprobs"].size(), 1U);
  EXPECT_EQ(made[2]["call_id"], "1");
  EXPECT_EQ(made[2]["arguments"], "{\"x\":1}");
  EXPECT_EQ(made[3]["name"], "g");
  for (const auto& item : made) EXPECT_EQ(item["status"], "completed");
}

TEST(ResponseItems, OpensAndClosesWhatItStreams) {
  ResponseItems items("r");
  items.Add({.kind = Kind::kContent, .text = "a"});
  EXPECT_THAT(TypesOf(items.TakeEvents()),
              ElementsAre("response.output_item.added", "response.content_part.added", "response.output_text.delta"));
  items.Add({.kind = Kind::kCall, .id = "1", .text = "f"});
  EXPECT_THAT(TypesOf(items.TakeEvents()), ElementsAre("response.output_text.done", "response.content_part.done",
                                                       "response.output_item.done", "response.output_item.added"));
  items.Add({.kind = Kind::kArguments, .text = "{}"});
  items.Finish();
  const auto events = items.TakeEvents();
  EXPECT_THAT(TypesOf(events), ElementsAre("response.function_call_arguments.delta",
                                           "response.function_call_arguments.done", "response.output_item.done"));
  EXPECT_EQ(events[0]["output_index"], 1);
  EXPECT_EQ(events[1]["arguments"], "{}");
  EXPECT_EQ(events[2]["item"]["name"], "f");
  items.Finish();
  EXPECT_TRUE(items.TakeEvents().empty()) << "nothing is open";
}

TEST(ResponseItems, AreIncompleteWhereTheyAreCutOffOrCannotBeRead) {
  ResponseItems items("r");
  items.Add({.kind = Kind::kCall, .id = "1", .text = "f"});
  items.Add({.kind = Kind::kArguments, .text = "{\"x\": "});
  items.Add({.kind = Kind::kContent, .text = "f({\"x\": oh"});
  items.Finish(/*is_whole=*/false);
  ASSERT_EQ(items.items().size(), 2U);
  EXPECT_EQ(items.items()[0]["status"], "incomplete") << "its text follows";
  EXPECT_EQ(items.items()[1]["status"], "incomplete");
  items.Add({.kind = Kind::kCall, .call = 1, .id = "2", .text = "f"});
  items.Add({.kind = Kind::kArguments, .call = 1, .text = "{}"});
  items.Finish();
  EXPECT_EQ(items.items()[2]["status"], "completed");
}

}  // namespace
}  // namespace tdock::inference
