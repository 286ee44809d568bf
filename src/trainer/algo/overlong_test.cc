#include "trainer/algo/overlong.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace tdock::algo {
namespace {

TEST(Overlong, GrowsFromNothingAtTheBeginningOfTheBufferToItsFactorAtTheLimit) {
  // The lengths of the paper: 20,480 tokens, of which the last 4,096 are the buffer.
  const OverlongOptions paper{.max_length = 20480, .buffer = 4096};
  EXPECT_EQ(OverlongPenalty(1, paper), 0);
  EXPECT_EQ(OverlongPenalty(16384, paper), 0);
  EXPECT_EQ(OverlongPenalty(16385, paper), -1.0 / 4096);
  EXPECT_EQ(OverlongPenalty(18432, paper), -0.5);
  EXPECT_EQ(OverlongPenalty(20480, paper), -1);
  EXPECT_EQ(OverlongPenalty(10, {.max_length = 10, .buffer = 4, .factor = 2.5}), -2.5);
}

TEST(Overlong, ABufferThatIsNoPartOfAnAnswerIsAnError) {
  for (const int64_t buffer : {0, 10, 11, -1}) {
    EXPECT_THROW(OverlongPenalty(5, {.max_length = 10, .buffer = buffer}), c10::Error) << buffer;
  }
}

}  // namespace
}  // namespace tdock::algo
