#include "dock/table/name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/hostile_text.h"

namespace tdock::dock {
namespace {

absl::Status WhyNot(absl::string_view name) { return CheckName("partition", name); }

auto Refuses(std::vector<std::string> names) {
  names.push_back("partition");
  return Fails(absl::StatusCode::kInvalidArgument, std::move(names));
}

TEST(CheckName, QuotesWhatItRefuses) {
  const absl::Status refused = WhyNot(kHostileText);
  EXPECT_THAT(refused, Refuses({"control character", "PWNED"}));
  EXPECT_TRUE(IsSafeForTerminals(refused.message())) << refused;
}

TEST(CheckName, TakesTextOfAnyLanguage) {
  for (const absl::string_view name :
       {"a", "train/epoch 3", "prüfung 試 😀", "پاسخ\u200cها", "👩\u200d🔬", "\xC2\xA0", "it's"}) {
    EXPECT_EQ(CheckName("partition", name), absl::OkStatus()) << name;
  }
  EXPECT_EQ(CheckName("partition", std::string(255, 'x')), absl::OkStatus());
}

TEST(CheckName, SaysWhatIsWrongWithTheOthers) {
  EXPECT_THAT(WhyNot(""), Refuses({"empty"}));
  EXPECT_THAT(WhyNot(std::string(256, 'x')), Refuses({"256 bytes", "255", "'xxx"}));
  EXPECT_THAT(WhyNot("new\nline"), Refuses({"control character", "'new\\nline'"}));
  EXPECT_THAT(WhyNot(absl::string_view("nul\0", 4)), Refuses({"control character", "'nul\\x00'"}));
  EXPECT_THAT(WhyNot("\x7F"), Refuses({"control character", "'\\x7f'"}));
  EXPECT_THAT(WhyNot("\xC2\x9B"), Refuses({"control character", "'\\xc2\\x9b'"}));
  EXPECT_THAT(WhyNot("a\u202Eb"), Refuses({"invisible character", "'a\\u202eb'"}));
  EXPECT_THAT(WhyNot("a\u200B"), Refuses({"invisible character", "'a\\u200b'"}));
  EXPECT_THAT(WhyNot("\uFEFFa"), Refuses({"invisible character", "'\\ufeffa'"}));
  EXPECT_THAT(WhyNot("a\U000E0041"), Refuses({"invisible character", "'a\\U000e0041'"}));
  EXPECT_THAT(WhyNot("\xC3("), Refuses({"UTF-8", "'\\xc3('"}));
  EXPECT_THAT(WhyNot("\xED\xA0\x80"), Refuses({"UTF-8", "'\\xed\\xa0\\x80'"}));
  EXPECT_THAT(WhyNot("\xC0\x80"), Refuses({"UTF-8", "'\\xc0\\x80'"}));
}

}  // namespace
}  // namespace tdock::dock
