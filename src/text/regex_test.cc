#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<TextRange>> FindAll(const Regex& regex, absl::string_view text) {
  EncodeBudget budget(text.size());
  return regex.FindAll(text, budget);
}

TEST(TranslateRegex, MakesPcre2MeanWhatOnigurumaDoes) {
  EXPECT_EQ(TranslateRegex(R"([^\s\p{L}]\S\P{^Nd}\p{Han})").value(),
            R"([^\p{White_Space}\p{L}]\P{White_Space}\p{Nd}\p{sc:Han})");
  for (const char* pattern :
       {R"(\w)", R"(\h)", R"(\R)", "[a&&b]", "[[:alpha:]]", "a{1,2}+", "(?m:a)", "(*UTF)", "\\"}) {
    EXPECT_EQ(TranslateRegex(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
}

TEST(TranslateRegex, KnowsTheQuantifiersThatDiffer) {
  EXPECT_EQ(TranslateRegex("a{,2}b{1,}?c{3}d?+e{ 1}{,}{").value(), R"(a{0,2}b{1,}?c{3}d?+e\{ 1}\{,}\{)");
  for (const char* pattern : {"a{2}?", "a{3,2}", "a**", "a{2}{3}?+", "a+?*"}) {
    EXPECT_EQ(TranslateRegex(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
}

TEST(TranslateRegex, TakesPropertiesByTheirLongNames) {
  EXPECT_EQ(TranslateRegex(R"(\p{Letter}\P{lowercase_letter}\p{^Digit}\p{Old_Italic}\p{Any})").value(),
            R"(\p{L}\P{Ll}\P{Nd}\p{sc:OldItalic}\p{Any})");
  for (const char* pattern :
       {R"(\p{Punct})", R"(\p{Alpha})", R"(\p{Emoji})", R"(\p{Nonsense})", R"(\p{})", R"(\p{Zx})"}) {
    const std::string shown = Quoted(pattern);
    EXPECT_THAT(TranslateRegex(pattern).status(),
                Fails(absl::StatusCode::kUnimplemented, {absl::StrCat(shown, " in"), absl::StrCat("pattern ", shown)}));
  }
}

TEST(TranslateRegex, RefusesCaseFoldingToSeveralCharacters) {
  const char* contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?i:s)(?i:s)|ss|(?i:s|s)s|(?i:[a-z']’é\\p{L})";
  EXPECT_EQ(TranslateRegex(contractions).value(), contractions);
  for (const char* pattern :
       {"(?i:ss)", "(?i:ß)", "(?i:oFf)", "(?i:(?:s)(t))", "(?:(?i:a|fi))", "(?i:[ß])", "(?i:[a-ÿ])", "(?i:[\\p{L}])",
        "(?i:\\p{Lu})", "(?i:\\p{lowercase letter})", "(?i:ſt)", "(?i:ﬆ)", "(?i:i\u0307)"}) {
    const absl::Status status = TranslateRegex(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << pattern;
    EXPECT_THAT(status.message(), HasSubstr("\"(?i:…")) << pattern;
  }
}

TEST(Regex, FindsMatchesFromLeftToRight) {
  const Regex regex = Regex::Compile(R"(\s+)").value();
  EXPECT_THAT(FindAll(regex, "a \u3000b\u180E\nc").value(), ElementsAre(TextRange{1, 5}, TextRange{9, 10}));
  const Regex empty = Regex::Compile("x*").value();
  EXPECT_THAT(FindAll(empty, "éxx").value(), ElementsAre(TextRange{0, 0}, TextRange{2, 4}));
}

TEST(Regex, GivesUpOnAPatternThatBacktracksWithoutEnd) {
  const Regex regex = Regex::Compile("(?:a+)+c").value();
  EXPECT_THAT(FindAll(regex, std::string(50, 'a') + "bc").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"(?:a+)+c\"", "byte 0"}));
}

TEST(Regex, EndsBehindTheMostMatchesAndWhereItIsStopped) {
  const Regex regex = Regex::Compile("a|(?=b)").value();
  EncodeBudget budget(6);
  EXPECT_THAT(regex.FindAll("abaaab", budget, /*max_matches=*/1).value(),
              ElementsAre(TextRange{0, 1}, TextRange{2, 3}));
  const EncodeOptions stopped{.stop = [] { return absl::CancelledError("enough"); }};
  EncodeBudget none(6, stopped);
  EXPECT_EQ(regex.FindAll("abaaab", none).status(), absl::CancelledError("enough"));
}

TEST(Regex, MatchesLongRuns) {
  const Regex regex = Regex::Compile(R"((?:a|b)+c)").value();
  const std::string text = std::string(200'000, 'a') + "c";
  EXPECT_THAT(FindAll(regex, text).value(), ElementsAre(TextRange{0, text.size()}));
}

}  // namespace
}  // namespace tdock::text
