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
  EXPECT_THAT(Refusal(R"({"a": 1,})"), Refuses({"JSON", "byte 9"}));
  EXPECT_THAT(Refusal(""), Refuses({"JSON", "byte 1"}));
  EXPECT_THAT(Refusal(R"({"a": 1} x)"), Refuses({"JSON", "byte 10"}));
  EXPECT_THAT(Refusal("{\"a\": \"\xff\"}"), Refuses({"JSON", "byte 8"}));
}

TEST(ParseJsonObject, RefusesWhatIsNoObject) {
  for (const char* text : {"[]", "1", "null", "\"a\""}) EXPECT_THAT(Refusal(text), Refuses({"JSON object"}));
}

TEST(ParseJsonObject, RefusesANumberTooLargeForADouble) {
  EXPECT_THAT(Refusal(R"({"a": 1e999})"), Refuses({"not JSON: "}));
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
