#include "trainer/loop/stop_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tdock::trainer {
namespace {

TEST(StopRule, IsMetOnceItsMetricReachesItsBound) {
  const auto above = ParseStopRule("val/accuracy >= 0.30");
  ASSERT_TRUE(above.ok()) << above.status();
  EXPECT_FALSE((*above)->IsMet({}));
  EXPECT_FALSE((*above)->IsMet({{"val/accuracy", 0.29}}));
  EXPECT_TRUE((*above)->IsMet({{"val/accuracy", 0.30}}));
  const auto below = ParseStopRule(" val/loss  <= 1.5 ");
  ASSERT_TRUE(below.ok()) << below.status();
  EXPECT_TRUE((*below)->IsMet({{"val/loss", 1.5}}));
  EXPECT_FALSE((*below)->IsMet({{"val/loss", 1.6}}));
  EXPECT_FALSE(ParseStopRule("")->has_value());
}

TEST(StopRule, WhatIsNoneIsRefusedWithAnExample) {
  for (const char* text : {"val/accuracy", "accuracy >= 0.3", "val/accuracy > 0.3", "val/accuracy >= nan",
                           "val/accuracy >= much", "val/accuracy >= 0.3 and more"}) {
    EXPECT_THAT(std::string(ParseStopRule(text).status().message()), testing::HasSubstr("val/accuracy >= 0.30"))
        << text;
  }
}

}  // namespace
}  // namespace tdock::trainer
