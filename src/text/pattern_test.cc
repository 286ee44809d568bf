#include "text/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::text {
namespace {

std::optional<bool> Anywhere(absl::string_view pattern, absl::string_view text) {
  return Pattern::Compile(pattern, Pattern::Extent::kAnywhere)->Matches(text);
}

std::optional<bool> Whole(absl::string_view pattern, absl::string_view text) {
  return Pattern::Compile(pattern, Pattern::Extent::kWhole)->Matches(text);
}

TEST(Pattern, IsFoundAnywhereOrIsTheWholeText) {
  EXPECT_EQ(Anywhere("b+", "abba"), true);
  EXPECT_EQ(Anywhere("c", "abba"), false);
  EXPECT_EQ(Whole("b+", "abba"), false);
  EXPECT_EQ(Whole("a|ab", "ab"), true) << "the second alternative is tried, too";
  EXPECT_EQ(Whole("(?s)<think>.*</think>\\s*<answer>.*</answer>", "<think>a\nb</think>\n<answer>4</answer>"), true);
  EXPECT_EQ(Whole("", ""), true);
  EXPECT_EQ(Anywhere("x", absl::string_view()), false);
}

TEST(Pattern, KnowsUnicode) {
  EXPECT_EQ(Whole(".", "é"), true);
  EXPECT_EQ(Whole("\\w+", "Größe"), true);
  EXPECT_EQ(Whole("a.b",
                  "a\xFF"
                  "b"),
            true)
      << "what is not UTF-8 is one character";
}

TEST(Pattern, RefusesWhatIsNotOne) {
  EXPECT_THAT(Pattern::Compile("a(b", Pattern::Extent::kAnywhere).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"a(b\"", "byte 3", "missing"}));
  EXPECT_FALSE(Pattern::Compile("\xFF", Pattern::Extent::kAnywhere).ok());
  EXPECT_FALSE(Pattern::Compile("\\C", Pattern::Extent::kAnywhere).ok());
  EXPECT_THAT(Pattern::Compile(std::string(Pattern::kMaxBytes + 1, 'a'), Pattern::Extent::kWhole).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"65537 bytes", "at most 65536"}));
}

TEST(Pattern, DoesNotSayWhatALimitKeptItFromFinding) {
  EXPECT_EQ(Anywhere("(a|aa)+$", std::string(2000, 'a') + "b"), std::nullopt);
  EXPECT_EQ(Anywhere("(a|aa)+$", std::string(2000, 'a') + "b"), std::nullopt);
}

TEST(EscapeForPattern, StandsForTheTextItself) {
  for (const std::string text : {"1.5", "a+b", "\\E(x)", "[a-z]{2}", "#### 4", "π²", "two\nlines"}) {
    EXPECT_EQ(Whole(EscapeForPattern(text), text), true) << text;
  }
  EXPECT_EQ(Whole(EscapeForPattern("1.5"), "1x5"), false);
  const std::string zero("a\0b", 3);
  EXPECT_EQ(Whole(EscapeForPattern(zero), zero), true);
}

}  // namespace
}  // namespace tdock::text
