#include "cli/printable.h"

#include <gtest/gtest.h>

namespace tdock::cli {
namespace {

TEST(Printable, EscapesWhatWouldChangeATerminal) {
  EXPECT_EQ(Printable("a\x1b[2J\r\x07\xC2\x9B\x7F"), "a\\x1b[2J\\r\\x07\\xc2\\x9b\\x7f");
  EXPECT_EQ(Printable("\xFF"), "\uFFFD");
}

TEST(PrintableJson, SaysTheSame) {
  EXPECT_EQ(PrintableJson("{\"a\": \"\x7F\xC2\x9B\\u001b é\"}\n"), "{\"a\": \"\\u007f\\u009b\\u001b é\"}\n");
}

TEST(Printable, LeavesTextOfAnyLanguage) {
  EXPECT_EQ(Printable("two\n\tlines \"é\" \\ 😀"), "two\n\tlines \"é\" \\ 😀");
  EXPECT_EQ(Printable("\u0645\u06CC\u200C\u062E\u0648\u0627\u0647\u0645"),
            "\u0645\u06CC\u200C\u062E\u0648\u0627\u0647\u0645");
}

}  // namespace
}  // namespace tdock::cli
