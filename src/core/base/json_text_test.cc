#include "core/base/json_text.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tdock {
namespace {

std::string Complaint(const std::string& text, int max_depth = 4) {
  const auto json = ParseJsonObject(text, max_depth);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
  return std::string(json.status().message());
}

TEST(ParseJsonObject, SaysWhereTheSyntaxIsWrong) {
  EXPECT_EQ(Complaint(R"({"a": 1,})"), "not JSON: a syntax error at byte 9");
  EXPECT_EQ(Complaint(""), "not JSON: a syntax error at byte 1");
  EXPECT_EQ(Complaint(R"({"a": 1} x)"), "not JSON: a syntax error at byte 10");
  EXPECT_EQ(Complaint("{\"a\": \"\xff\"}"), "not JSON: a syntax error at byte 8");
}

TEST(ParseJsonObject, RefusesWhatIsNoObject) {
  for (const char* text : {"[]", "1", "null", "\"a\""}) EXPECT_EQ(Complaint(text), "not a JSON object");
}

TEST(ParseJsonObject, RefusesANumberTooLargeForADouble) {
  EXPECT_EQ(Complaint(R"({"a": 1e999})").substr(0, 10), "not JSON: ");
}

TEST(ParseJsonObject, RefusesANameThatOneObjectHasTwice) {
  EXPECT_EQ(Complaint(R"({"a": 1, "b": 2, "a": 3})"), "has 'a' twice in one object");
  EXPECT_EQ(Complaint(R"({"x": {"a": {}, "\u0061": 3}})"), "has 'a' twice in one object");
  EXPECT_TRUE(ParseJsonObject(R"({"a": {"a": {"b": 1}}, "b": {"b": [{"a": 1}, {"a": 1}]}})", 4).ok());
}

TEST(ParseJsonObject, RefusesDeepNestingHoweverDeepItIs) {
  EXPECT_TRUE(ParseJsonObject(R"({"a": [{"b": []}]})", 4).ok());
  EXPECT_EQ(Complaint(R"({"a": [{"b": [[]]}]})"), "more than 4 nested objects and lists");
  const int depth = 1'000'000;
  EXPECT_EQ(Complaint(std::string(depth, '[')), "more than 4 nested objects and lists");
  EXPECT_EQ(Complaint(R"({"a": )" + std::string(depth, '[') + std::string(depth, ']') + "}"),
            "more than 4 nested objects and lists");
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
  EXPECT_EQ(ParseJsonObject(text + "]}", 4).status().message(), "more than 10000000 values");
}

}  // namespace
}  // namespace tdock
