#include "core/base/utf8.h"

#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "core/base/testing/hostile_text.h"

namespace tdock {
namespace {

TEST(Utf8, ReadsCharactersOfEveryLength) {
  const absl::string_view texts[] = {"A", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
  const char32_t codes[] = {0x41, 0xE9, 0x20AC, 0x1F600};
  for (size_t i = 0; i < 4; ++i) {
    const auto read = FirstUtf8Char(texts[i]);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->code, codes[i]);
    EXPECT_EQ(read->bytes, i + 1);
    EXPECT_FALSE(FirstUtf8Char(texts[i].substr(0, i)).has_value()) << "cut short";
  }
}

TEST(Utf8, AcceptsTheBoundsOfEachLength) {
  for (absl::string_view text : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_FALSE(FindInvalidUtf8(text).has_value());
  }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndWhatLiesBeyondUnicode) {
  for (absl::string_view text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
                                 "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xFE", "\xFF"}) {
    EXPECT_EQ(FindInvalidUtf8(text), 0u);
  }
}

TEST(Utf8, FindsTheSameAsReadingCharacterByCharacter) {
  const std::string pieces[] = {"a",   "ascii of nine", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xED\xA0\x80",
                                "\xFF"};
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (uint64_t count = rng.Below(12); count > 0; --count) text += pieces[rng.Below(i % 2 == 0 ? 5 : 7)];
    if (i % 3 == 0) text.resize(text.size() - std::min(text.size(), size_t{1}));
    std::optional<size_t> expected;
    for (size_t at = 0; at < text.size() && !expected.has_value();) {
      const auto read = FirstUtf8Char(absl::string_view(text).substr(at));
      if (!read.has_value()) expected = at;
      at += read.has_value() ? read->bytes : 0;
    }
    ASSERT_EQ(FindInvalidUtf8(text), expected) << EscapeForMessage(text, 1000);
  }
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8("ab\xC3\xA9\xFFz"), 4u);
  EXPECT_EQ(FindInvalidUtf8("ab\xC3"), 2u);
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
}

TEST(Utf8, KnowsTheControlCharacters) {
  for (const char32_t code : {0x00, 0x0A, 0x1B, 0x1F, 0x7F, 0x80, 0x9B, 0x9F})
    EXPECT_TRUE(IsControl(code)) << uint32_t{code};
  for (const char32_t code : {0x20, 0x7E, 0xA0, 0xE9, 0x1F600}) EXPECT_FALSE(IsControl(code)) << uint32_t{code};
}

TEST(Utf8, KnowsWhatIsUnprintable) {
  for (const char32_t code : {0x00, 0x1B, 0x9B, 0xAD, 0x61C, 0x200B, 0x200F, 0x2028, 0x202E, 0x2060, 0x2066, 0x2069,
                              0xFEFF, 0xFFF9, 0xFFFB, 0xE0000, 0xE0041, 0xE007F}) {
    EXPECT_TRUE(IsUnprintable(code)) << uint32_t{code};
  }
  for (const char32_t code :
       {0x20,   0x7E,   0xA0,   0xAC,   0xAE,   0x61B,  0x61D,  0x200A, 0x200C,  0x200D,  0x2010, 0x2027,
        0x202F, 0x205F, 0x2070, 0xFEFE, 0xFF00, 0xFFF8, 0xFFFC, 0xFFFD, 0x1F600, 0xDFFFF, 0xE0080}) {
    EXPECT_FALSE(IsUnprintable(code)) << uint32_t{code};
  }
}

TEST(EscapeForMessage, KeepsTextValidShortAndOnOneLine) {
  EXPECT_EQ(EscapeForMessage("37+85= é😀"), "37+85= é😀");
  EXPECT_EQ(EscapeForMessage("it's"), "it's");
  EXPECT_EQ(EscapeForMessage("a\nb\"\x1b[0m\xC2\x9B\xFF"), "a\\nb\\\"\\x1b[0m\\xc2\\x9b\\xff");
  EXPECT_EQ(EscapeForMessage("abcdef", 6), "abcdef");
  EXPECT_EQ(EscapeForMessage("abcdef", 5), "abcde…");
  EXPECT_EQ(EscapeForMessage("aaéé", 5), "aaé…") << "a character is not cut";
  EXPECT_EQ(EscapeForMessage("C:\\a"), "C:\\\\a");
}

TEST(EscapeForMessage, ShowsWhatWouldNotBeSeen) {
  EXPECT_EQ(EscapeForMessage("ab\u202Ecd\u2066\u200B\uFEFF\u2028\u00AD"),
            "ab\\u202ecd\\u2066\\u200b\\ufeff\\u2028\\u00ad");
  EXPECT_EQ(EscapeForMessage("\U000E0041"), "\\U000e0041");
}

TEST(EscapeUnprintable, LeavesQuotesAndBackslashes) {
  EXPECT_EQ(EscapeUnprintable("it's \"é\" \\x"), "it's \"é\" \\x");
  EXPECT_EQ(EscapeUnprintable("a\nb\t\x1b[2J\xC2\x9B\xFF\u202E"), "a\\nb\\t\\x1b[2J\\xc2\\x9b\\xff\\u202e");
  EXPECT_EQ(EscapeUnprintable("aaéé", 5), "aaé…");
}

TEST(EscapeForTerminal, LeavesLinesAndTabs) {
  EXPECT_EQ(EscapeForTerminal("two\n\tlines, \"é\" 😀\n"), "two\n\tlines, \"é\" 😀\n");
  EXPECT_EQ(EscapeForTerminal("\r\x1b[2J\x07\x7F\xC2\x9B\x9B\u202E"), "\\r\\x1b[2J\\x07\\x7f\\xc2\\x9b\\x9b\\u202e");
  EXPECT_EQ(EscapeForTerminal(absl::string_view("\0", 1)), "\\x00");
}

TEST(EscapeForTerminal, LeavesWhatIsEscaped) {
  const std::string once = EscapeForTerminal(Quoted(kHostileText));
  EXPECT_TRUE(IsSafeForTerminals(once)) << once;
  EXPECT_EQ(EscapeForTerminal(once), once);
}

// The expected strings are what Python 3.11's bytes.decode(errors="replace") gives.
TEST(ReplaceInvalidUtf8, ReplacesEachLongestBeginningOfACharacter) {
  EXPECT_EQ(ReplaceInvalidUtf8(""), "");
  EXPECT_EQ(ReplaceInvalidUtf8("aé€😀"), "aé€😀");
  EXPECT_EQ(ReplaceInvalidUtf8("\x80z"), "\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC3"), "\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE0\x9F\xBF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x8F\xBF\xBF"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF1\x80\x80\xE1\x80\xC2z\xFF"), "\uFFFD\uFFFD\uFFFDz\uFFFD");
}

TEST(UnfinishedUtf8, CountsTheBytesOfABeginningAtTheEnd) {
  EXPECT_EQ(UnfinishedUtf8(""), 0u);
  EXPECT_EQ(UnfinishedUtf8("a"), 0u);
  EXPECT_EQ(UnfinishedUtf8("é"), 0u);
  EXPECT_EQ(UnfinishedUtf8("a\xC3"), 1u);
  EXPECT_EQ(UnfinishedUtf8("é\xE2\x82"), 2u);
  EXPECT_EQ(UnfinishedUtf8("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(UnfinishedUtf8("\xE0\x9F"), 0u) << "overlong";
  EXPECT_EQ(UnfinishedUtf8("\xC0"), 0u);
  EXPECT_EQ(UnfinishedUtf8("\xF5"), 0u);
  EXPECT_EQ(UnfinishedUtf8("\x80\x80"), 0u);
}

}  // namespace
}  // namespace tdock
