#include "core/base/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"

namespace tdock {
namespace {

absl::Status Refusal(const std::string& text, int max_depth = 4) { return ParseJsonObject(text, max_depth).status(); }

auto Refuses(std::vector<std::string> names) { return Fails(absl::StatusCode::kInvalidArgument, std::move(names)); }

TEST(ParseJsonObject, SaysWhereTheSyntaxIsWrong) {
  EXPECT_THAT(Refusal(R"({"a": 1,})"), Refuses({"JSON", "column 9", "'}'"}));
  EXPECT_THAT(Refusal(""), Refuses({"JSON", "column 1"}));
  EXPECT_THAT(Refusal(R"({"a": 1} x)"), Refuses({"JSON", "column 10"}));
  EXPECT_THAT(Refusal("{\"a\": \"\xff\"}"), Refuses({"JSON", "column 8", "UTF-8"}));
  EXPECT_THAT(Refusal("{\"\u00e9\": 1,\n \"b\" 2}"), Refuses({"line 2, column 6", "'2'", "':'"}));
  EXPECT_THAT(Refusal("{\"\u00e9\": x}"), Refuses({"column 7", "'x'"})) << "a character counts once";
}

TEST(ParseJsonObject, SaysWhatIsExpectedInstead) {
  EXPECT_THAT(Refusal("{'a': 1}"), Refuses({"column 2", "double quotes"}));
  EXPECT_THAT(Refusal(R"({"a": [1 "bc"]})"), Refuses({"column 10", "bc", "',' or ']'"}));
  EXPECT_THAT(Refusal(R"({"a": [1 2.5]})"), Refuses({"column 10", "'2.5'", "',' or ']'"}));
  EXPECT_THAT(Refusal("{“a”: 1}"), Refuses({"column 2", "'“'", "double quotes"}));
  EXPECT_THAT(Refusal(R"({"a": True})"), Refuses({"column 7", "'True'", "true"}));
  EXPECT_THAT(Refusal(R"({"a": 1)"), Refuses({"column 8", "ends", "',' or '}'"}));
  EXPECT_THAT(Refusal("{\"a\": \"x\ty\"}"), Refuses({"column 9", "U+0009", "\\t"}));
}

TEST(ParseJsonObject, RefusesWhatIsNoObject) {
  for (const char* text : {"[]", "1", "null", "\"a\""}) EXPECT_THAT(Refusal(text), Refuses({"JSON object"}));
}

TEST(ParseJsonObject, RefusesANumberTooLargeForADouble) {
  EXPECT_THAT(Refusal(R"({"a": 1e999})"), Refuses({"not JSON: ", "column 7", "1e999"}));
}

TEST(ParseJsonObject, RefusesANameThatOneObjectHasTwice) {
  EXPECT_THAT(Refusal(R"({"a": 1, "b": 2, "a": 3})"), Refuses({"'a'", "twice"}));
  EXPECT_THAT(Refusal(R"({"x": {"a": {}, "\u0061": 3}})"), Refuses({"'a'", "twice"}));
  EXPECT_TRUE(ParseJsonObject(R"({"a": {"a": {"b": 1}}, "b": {"b": [{"a": 1}, {"a": 1}]}})", 4).ok());
}

TEST(ParseJsonObject, RefusesDeepNestingHoweverDeepItIs) {
  EXPECT_TRUE(ParseJsonObject(R"({"a": [{"b": []}]})", 4).ok());
  EXPECT_THAT(Refusal(R"({"a": [{"b": [[]]}]})"), Refuses({"more than 4", "nested"}));
  const int depth = 1'000'000;
  EXPECT_THAT(Refusal(std::string(depth, '[')), Refuses({"more than 4", "nested"}));
  EXPECT_THAT(Refusal(R"({"a": )" + std::string(depth, '[') + std::string(depth, ']') + "}"),
              Refuses({"more than 4", "nested"}));
}

// A parser that looks at all of what stands before takes hours.
TEST(ParseJsonObject, OfManyObjectsTakesLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += absl::StrCat(i == 0 ? "" : ",", "\"", i, "\":{\"a\":[]}");
  const auto json = ParseJsonObject(text + "}", 4);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 300'000u);
}

TEST(ParseJsonObject, OfTooManyValuesIsRefusedBeforeTheyAreMade) {
  std::string text = "{\"a\":[0";
  for (int i = 0; i < 10'000'000; ++i) text += ",0";
  EXPECT_THAT(Refusal(text + "]}"), Refuses({"10000000 values"}));
}

}  // namespace
}  // namespace tdock
