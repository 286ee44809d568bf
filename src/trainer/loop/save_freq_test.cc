#include "trainer/loop/save_freq.h"

#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

TEST(SaveFreq, IsInStepsOrInTime) {
  EXPECT_EQ(ParseSaveFreq("50")->steps, 50);
  EXPECT_EQ(ParseSaveFreq("50")->time, absl::ZeroDuration());
  EXPECT_EQ(ParseSaveFreq("30min")->time, absl::Minutes(30));
  EXPECT_EQ(ParseSaveFreq("1h30m")->time, absl::Minutes(90));
  EXPECT_EQ(ParseSaveFreq("90s")->time, absl::Seconds(90));
  EXPECT_EQ(ParseSaveFreq("90s")->steps, 0);
  for (const char* never : {"", "0", "-1"}) EXPECT_TRUE(ParseSaveFreq(never)->never()) << never;
  for (const char* wrong : {"-2", "often", "1ms", "0s", "-5min", "inf", "5 min"}) {
    EXPECT_THAT(ParseSaveFreq(wrong).status(), Fails(absl::StatusCode::kInvalidArgument, {wrong, "30min"})) << wrong;
  }
}

}  // namespace
}  // namespace tdock::trainer
