#include "core/config/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"

namespace tdock::config {
namespace {

TEST(ParseOverride, SplitsAtTheFirstEqualsSign) {
  for (const char* text : {"a.b=c=d", "+a.b=c=d", "++a.b=c=d"}) {
    const absl::StatusOr<Override> read = ParseOverride(text, "x.y");
    ASSERT_EQ(read.status(), absl::OkStatus());
    EXPECT_EQ(read->key, "a.b");
    EXPECT_EQ(read->value, "c=d");
  }
  EXPECT_EQ(ParseOverride("a=", "x.y")->value, "");
}

TEST(ParseOverride, RefusesWhatGivesNoKeyAValue) {
  for (const char* text : {"a.b", "=c", "+=c", "", "+"}) {
    EXPECT_THAT(ParseOverride(text, "x.y").status(),
                Fails(absl::StatusCode::kInvalidArgument, {absl::StrCat("\"", text, "\""), "key=value", "x.y=…"}));
  }
  for (const char* text : {"~a.b", "~a.b=c"}) {
    EXPECT_THAT(ParseOverride(text, "x.y").status(),
                Fails(absl::StatusCode::kInvalidArgument, {absl::StrCat("\"", text, "\""), "key=null"}));
  }
}

TEST(ParseInlineValue, TakesTextAsItIs) {
  for (const char* text : {"", "abc", "1e-3", "x: [y, z]", "# no comment", "it's", "~", "Null", "a,b", "[a, b]"}) {
    const std::optional<Value> value = ParseInlineValue(text, /*takes_list=*/false, {});
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(value->scalar.text, text);
    EXPECT_FALSE(value->scalar.quoted || value->null());
  }
  EXPECT_TRUE(ParseInlineValue("null", false, {})->null());
}

TEST(ParseInlineValue, TakesQuotesOff) {
  const std::pair<const char*, const char*> texts[] = {
      {"'a b'", "a b"},     {"\"a'b\"", "a'b"}, {"'it\\'s'", "it's"}, {"''", ""},
      {"'a\\nb'", "a\\nb"}, {"\"\\\"\"", "\""}, {"'null'", "null"},   {"'[a]'", "[a]"},
  };
  for (const auto& [text, meant] : texts) {
    const std::optional<Value> value = ParseInlineValue(text, /*takes_list=*/true, {});
    ASSERT_TRUE(value.has_value()) << text;
    EXPECT_EQ(value->scalar.text, meant);
    EXPECT_TRUE(value->scalar.quoted) << "5 in quotes is a text";
    EXPECT_FALSE(value->null());
  }
  for (const char* text : {"'", "\"", "'a", "'a' 'b'", "'a'b", "\"a'", "'a\\'"}) {
    EXPECT_FALSE(ParseInlineValue(text, /*takes_list=*/false, {}).has_value()) << text;
  }
}

TEST(ParseInlineValue, TakesBracketsForAListIfTheKeyTakesOne) {
  const std::optional<Value> value = ParseInlineValue("[a, 'b, c', null]", /*takes_list=*/true, {});
  ASSERT_TRUE(value.has_value());
  ASSERT_EQ(value->kind, Value::Kind::kList);
  ASSERT_EQ(value->items.size(), 3u);
  EXPECT_EQ(value->items[1].text, "b, c");
  EXPECT_TRUE(value->items[2].null);
  EXPECT_EQ(ParseInlineValue("[]", true, {})->kind, Value::Kind::kList);
  EXPECT_EQ(ParseInlineValue("[[a]]", true, {})->kind, Value::Kind::kNestedList);
  EXPECT_FALSE(ParseInlineValue("[a", true, {}).has_value());
  EXPECT_FALSE(ParseInlineValue("[a]\nb: c", true, {}).has_value());
}

}  // namespace
}  // namespace tdock::config
