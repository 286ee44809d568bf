#include "inference/grammar/char_dfa.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "inference/grammar/schema_document.h"

namespace tdock::inference {
namespace {

// A class of 2,500 ranges.
std::string ManyRanges() {
  std::string ranges = "[";
  for (int i = 0; i < 2500; ++i) absl::StrAppend(&ranges, "\\u", absl::Hex(0x3000 + 2 * i, absl::kZeroPad4));
  return ranges + "]";
}

struct RegexCase {
  std::string pattern;
  std::vector<std::string> accepted, refused;
};

void CheckRegex(const RegexCase& of, RegexMatch match) {
  SCOPED_TRACE(of.pattern);
  const auto dfa = CompileRegex(of.pattern, match);
  ASSERT_TRUE(dfa.ok()) << dfa.status();
  for (const std::string& text : of.accepted) EXPECT_TRUE(dfa->Accepts(text)) << text;
  for (const std::string& text : of.refused) EXPECT_FALSE(dfa->Accepts(text)) << text;
}

TEST(Regex, AcceptsWholeTexts) {
  const std::vector<RegexCase> cases = {
      {"", {""}, {"a"}},
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aabbc"}, {"a", "ac", "bcc"}},
      {"(?:ab){2,3}", {"abab", "ababab"}, {"ab", "abababab", "aba"}},
      {"(a|b){2}", {"ab", "ba", "aa"}, {"a", "abc"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"(?<name>a)(?P<other>b)", {"ab"}, {"a"}},
      {"a*?b+?c??", {"b", "abc"}, {"a"}},
      {"[a-c0_-]+", {"a-_0c"}, {"d", ""}},
      {"[^a-c]", {"d", "é", "\n"}, {"a", "", "de"}},
      {"[\\d.\\]^]+", {"1.]^"}, {"a"}},
      {"[\\]\\\\-]", {"]", "\\", "-"}, {"a"}},
      {".", {"a", "é", "😀", " "}, {"", "\n", "\r", "ab"}},
      {"\\d\\D\\w\\W\\s\\S", {"1a_- x", "0é9é\xc2\xa0\"", "1ab.\u2003é"}, {"aa_- x", "11_- x", "1a_-  "}},
      {"\\t\\n\\r\\f\\v\\0", {std::string("\t\n\r\f\v\0", 6)}, {"tnrfv0"}},
      {"\\x41\\u00e9\\u{1F600}\\u{41}", {"Aé😀A"}, {"Aé😀"}},
      {"\\.\\*\\/\\-\\{\\}\\(\\)\\[\\]\\^\\$\\|\\\\", {".*/-{}()[]^$|\\"}, {}},
      {"a{b}{,2x}]}", {"a{b}{,2x}]}"}, {}},
      {"^abc$", {"abc"}, {"ab", "^abc$"}},
      {"^a|b$", {"a", "b"}, {"ab"}},
      {"(^a|b)c", {"ac", "bc"}, {"c"}},
      {"a(b$|c)", {"ab", "ac"}, {"a"}},
      {"\\Aa\\Z", {"a"}, {""}},
      {"(?:(?:a|b)*c)*", {"", "c", "abcc", "ccac"}, {"a", "ca"}},
      {"(a*)*b", {"b", "aab"}, {"a"}},
      {"(?!ab)[a-c]{2}", {"aa", "ba", "cc"}, {"ab", "a"}},
      {"(?=a)(?!.*c).*", {"a", "ab"}, {"", "b", "ac"}},
      {"x(?:(?=[ab]+$)[a-d]*$|e)", {"xab", "xe"}, {"xad", "x", "xc"}},
      // Decimal numbers, as pydantic writes them.
      {R"(^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$)", {"1", "+01.50", ".5", "-3."}, {"", "-", "+.", "1e5", "1.2.3"}},
      {R"(^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$))",
       {"123", "-12.34", "000123.4500", "1.5"},
       {"1234", "1.234", ".", "12345.6"}},
  };
  for (const RegexCase& one : cases) CheckRegex(one, RegexMatch::kWhole);
}

TEST(Regex, FindsWhatTextsContain) {
  const std::vector<RegexCase> cases = {
      {"", {"", "a"}, {}},
      {"ab", {"ab", "xaby", "aab"}, {"", "a", "ba"}},
      {"^ab", {"ab", "abc"}, {"xab"}},
      {"ab$", {"ab", "xab"}, {"abx"}},
      {"^ab$", {"ab"}, {"xab", "abx"}},
      {"^a|b$", {"ax", "xb", "ab"}, {"xa", "bx"}},
      {"(^a|b)c", {"ac", "bc", "xbcx"}, {"xac"}},
      {"^(a|b$)", {"ax", "b"}, {"bx", "xb"}},
      {"a\nb", {"\na\nb\n"}, {"ab"}},
      {"^(?!x)", {"", "ax"}, {"x", "xa"}},
      {"^(?!.*secret)[a-z ]+$", {"a word"}, {"a secret word", "A"}},
  };
  for (const RegexCase& one : cases) CheckRegex(one, RegexMatch::kSearch);
}

TEST(Regex, NamesWhatItDoesNotSupport) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"a(b", {"byte 1", "no end"}},
      {"ab)", {"byte 2"}},
      {"*a", {"byte 0", "repeat"}},
      {"a**", {"repeat"}},
      {"a++", {"possessive"}},
      {"^*", {"byte 0", "repeated"}},
      {"[a", {"byte 0", "no end"}},
      {"[]a]", {"class"}},
      {"[b-a]", {"range"}},
      {"a{3,2}", {"{3,2}"}},
      {"a{,2}", {"{2,5}"}},
      {"a{100001}", {"100000"}},
      {"(?i)a", {"byte 0", "(?i)"}},
      {"(?<=a)b", {"(?<="}},
      {"(a)\\1", {"\\1"}},
      {"\\bword\\b", {"\\b"}},
      {"\\p{L}", {"\\p"}},
      {"\\u12", {"hexadecimal"}},
      {"\\ud800", {"d800"}},
      {"\\u{110000}", {"110000"}},
      {"a\\", {"'\\'"}},
      {"((?=a)b)c", {"(?=…)"}},
      {"(?:(?=a)a$)*", {"repeated"}},
      {"a(?=^b)b$", {"byte 5", "^"}},
      {"(.*a.{20}){1,3}b", {"too large"}},
      {"((a{1000}){1000}){1000}", {"too large"}},
      {"(((){1000}){1000}){1000}", {"too large"}},
      {"(a?){0,30000}", {"too large"}},
      {ManyRanges() + "{0,90000}", {"too large"}},
      {"(?:[a-z]?[b-y]?[c-x]?[d-w]?){0,2000}", {"too large"}},
      {"\xff", {"UTF-8"}},
      {std::string(20'000, 'a'), {"20000 bytes"}},
      {std::string(101, '(') + std::string(101, ')'), {"100 groups"}},
  };
  for (const auto& [pattern, names] : cases) {
    EXPECT_THAT(CompileRegex(pattern, RegexMatch::kWhole).status(), Fails(absl::StatusCode::kInvalidArgument, names))
        << pattern.substr(0, 100);
  }
}

TEST(Formats, AcceptWhatTheyAreOf) {
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> cases = {
      {"date",
       {"2024-02-29", "1999-12-31", "0004-02-29"},
       {"2023-02-29", "2024-04-31", "0000-01-01", "2024-13-01", "24-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.5+14:00"}, {"24:00:00Z", "23:59:59", "1:00:00Z"}},
      {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z", "2024-02-29"}},
      {"duration", {"P1Y2M3DT4H5M6S", "PT5S", "P2W", "P1D"}, {"P", "PT", "P1S", "P1H", "1D"}},
      {"email", {"a.b@c.example", "x_1%+@mail-1.example.org"}, {"a@b", "@c.example", "a.@c.example", "a@-c.example"}},
      {"hostname", {"a", "mail-1.example.org"}, {"", "-a", "a-", "a..b", "a_b"}},
      {"ipv4", {"0.0.0.0", "255.199.20.1"}, {"256.0.0.0", "1.2.3", "01.2.3.4"}},
      {"ipv6", {"::", "::1", "1:2:3:4:5:6:7:8", "fe80::a:b", "1::8"}, {":", "1:2:3:4:5:6:7", "1::2::3", "12345::"}},
      {"uuid",
       {"123e4567-e89b-12d3-a456-426614174000"},
       {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}},
      {"uuid4", {"123e4567-e89b-42d3-a456-426614174000"}, {"123e4567-e89b-12d3-a456-426614174000"}},
      {"uri", {"https://example.org", "http://a.b:80/c/d%20e?f=1#g"}, {"example.org", "https://", "https://a b"}},
      {"base64url", {"", "YWI=", "YWI", "YQ==", "YQ", "YWJj"}, {"Y", "YQ=", "a+b/"}},
  };
  for (const auto& [format, accepted, refused] : cases) {
    SCOPED_TRACE(format);
    CheckRegex({PatternOfFormat(format).value(), accepted, refused}, RegexMatch::kWhole);
  }
  EXPECT_EQ(PatternOfFormat("password").value(), "");
  EXPECT_THAT(PatternOfFormat("colour").status(),
              Fails(absl::StatusCode::kNotFound, {"'colour'", "date-time", "uuid"}));
}

TEST(CharDfa, CombinesLanguages) {
  const CharDfa a = CompileRegex("[a-m]{1,3}", RegexMatch::kWhole).value();
  const CharDfa b = CompileRegex("x|[k-z]*", RegexMatch::kWhole).value();
  const CharDfa both = Intersect(a, b).value(), neither = Complement(Intersect(Complement(a), Complement(b)).value());
  for (const char* const text : {"", "a", "k", "kl", "klmk", "x", "xyz", "ax", "abc", "é", "klm"}) {
    EXPECT_EQ(both.Accepts(text), a.Accepts(text) && b.Accepts(text)) << text;
    EXPECT_EQ(neither.Accepts(text), a.Accepts(text) || b.Accepts(text)) << text;
  }
  EXPECT_TRUE(Intersect(a, Complement(a)).value().empty());
  const CharDfa many = CompileRegex(ManyRanges() + "*", RegexMatch::kWhole).value();
  EXPECT_THAT(Intersect(many, DfaOfLengths(0, 19'000)).status(), Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(DfaOfLengths(1, 2).Accepts(""));
  EXPECT_TRUE(DfaOfLengths(1, 2).Accepts("é😀"));
  EXPECT_FALSE(DfaOfLengths(1, 2).Accepts("abc"));
  EXPECT_TRUE(DfaOfLengths(2, std::nullopt).Accepts("abcd"));
  const std::vector<std::string> texts = {"ab", "a", "éa", ""};
  const CharDfa of_texts = DfaOfTexts(texts).value();
  for (const std::string& text : texts) EXPECT_TRUE(of_texts.Accepts(text)) << text;
  for (const char* const text : {"b", "é", "aba"}) EXPECT_FALSE(of_texts.Accepts(text)) << text;
}

}  // namespace
}  // namespace tdock::inference
