#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tdock::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TranslateRegex, MakesPcre2MeanWhatOnigurumaDoes) {
  EXPECT_EQ(TranslateRegex(R"([^\s\p{L}]\S\P{^Nd}\p{Han})").value(),
            R"([^\p{White_Space}\p{L}]\P{White_Space}\p{Nd}\p{sc:Han})");
  for (const char* pattern :
       {R"(\w)", R"(\h)", R"(\R)", "[a&&b]", "[[:alpha:]]", "a{1,2}+", "(?m:a)", "(*UTF)", "\\"}) {
    EXPECT_EQ(TranslateRegex(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
}

TEST(Regex, FindsMatchesFromLeftToRight) {
  const Regex regex = Regex::Compile(R"(\s+)").value();
  EXPECT_THAT(regex.FindAll("a \u3000b\u180E\nc").value(), ElementsAre(TextRange{1, 5}, TextRange{9, 10}));
  const Regex empty = Regex::Compile("x*").value();
  EXPECT_THAT(empty.FindAll("éxx").value(), ElementsAre(TextRange{0, 0}, TextRange{2, 4}));
}

TEST(Regex, GivesUpOnAPatternThatBacktracksWithoutEnd) {
  const Regex regex = Regex::Compile("(?:a+)+c").value();
  EXPECT_THAT(regex.FindAll(std::string(50, 'a') + "bc").status().message(), HasSubstr("cannot be matched"));
}

TEST(Regex, MatchesLongRuns) {
  const Regex regex = Regex::Compile(R"((?:a|b)+c)").value();
  const std::string text = std::string(200'000, 'a') + "c";
  EXPECT_THAT(regex.FindAll(text).value(), ElementsAre(TextRange{0, text.size()}));
}

}  // namespace
}  // namespace tdock::text
