#include "dock/table/name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tdock::dock {
namespace {

using testing::HasSubstr;

std::string WhyNot(absl::string_view name) {
  const absl::Status status = CheckName("partition", name);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CheckName, TakesTextOfAnyLanguage) {
  for (const absl::string_view name : {"a", "train/epoch 3", "prüfung 試 😀", "\xC2\xA0", "it's"}) {
    EXPECT_EQ(CheckName("partition", name), absl::OkStatus()) << name;
  }
  EXPECT_EQ(CheckName("partition", std::string(255, 'x')), absl::OkStatus());
}

TEST(CheckName, SaysWhatIsWrongWithTheOthers) {
  EXPECT_EQ(WhyNot(""), "partition: the name is empty");
  EXPECT_THAT(WhyNot(std::string(256, 'x')), HasSubstr("has 256 bytes and may have 255: 'xxx"));
  EXPECT_EQ(WhyNot("new\nline"), "partition: the name has a control character: 'new\\nline'");
  EXPECT_EQ(WhyNot(absl::string_view("nul\0", 4)), "partition: the name has a control character: 'nul\\x00'");
  EXPECT_EQ(WhyNot("\x7F"), "partition: the name has a control character: '\\x7f'");
  EXPECT_EQ(WhyNot("\xC2\x9B"), "partition: the name has a control character: '\\xc2\\x9b'");
  EXPECT_EQ(WhyNot("\xC3("), "partition: the name is not UTF-8: '\\xc3('");
  EXPECT_EQ(WhyNot("\xED\xA0\x80"), "partition: the name is not UTF-8: '\\xed\\xa0\\x80'");
  EXPECT_EQ(WhyNot("\xC0\x80"), "partition: the name is not UTF-8: '\\xc0\\x80'");
}

}  // namespace
}  // namespace tdock::dock
