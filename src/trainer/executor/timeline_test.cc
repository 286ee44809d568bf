#include "trainer/executor/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

TEST(Timeline, CountsWhatStagesDidSinceItWasLastAsked) {
  FakeClock clock;
  Timeline timeline(clock);
  timeline.Wait("reward");
  clock.Advance(absl::Seconds(2));
  timeline.Work("reward", 8);
  clock.Advance(absl::Seconds(3));
  Timeline::Taken taken = timeline.Take();
  EXPECT_DOUBLE_EQ(taken.times["reward"].waiting, 2);
  EXPECT_DOUBLE_EQ(taken.times["reward"].working, 3);
  ASSERT_EQ(taken.spans.size(), 2);
  EXPECT_EQ(taken.spans[1].rows, 8);
  clock.Advance(absl::Seconds(4));
  timeline.End("reward");
  clock.Advance(absl::Seconds(50));
  taken = timeline.Take();
  EXPECT_DOUBLE_EQ(taken.times["reward"].working, 4);
  ASSERT_EQ(taken.spans.size(), 1);
  EXPECT_EQ(taken.spans[0].rows, 0) << "they were counted before";
}

TEST(Timeline, PutsManyShortSpansTogetherWithoutLosingTimeOrRows) {
  FakeClock clock;
  Timeline timeline(clock);
  for (int i = 0; i < 5000; ++i) {
    timeline.Wait("reward");
    clock.Advance(absl::Milliseconds(1));
    timeline.Work("reward", 1);
    clock.Advance(absl::Milliseconds(i == 2500 ? 1000 : 2));
  }
  timeline.End("reward");
  const Timeline::Taken taken = timeline.Take(20);
  EXPECT_LE(taken.spans.size(), 20);
  EXPECT_GT(taken.spans.size(), 1);
  int64_t rows = 0;
  absl::Duration covered;
  absl::Time end = taken.spans.front().begin;
  for (const StageSpan& span : taken.spans) {
    EXPECT_EQ(span.begin, end);
    end = span.end;
    rows += span.rows;
    covered += span.end - span.begin;
  }
  EXPECT_EQ(rows, 5000);
  EXPECT_EQ(covered, absl::Milliseconds(5000 + 4999 * 2 + 1000));
}

}  // namespace
}  // namespace tdock::trainer
