#include "trainer/run_log/progress.h"
#include "core/base/testing/hostile_text.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

class ProgressTest : public testing::Test {
 protected:
  ProgressOutput Output() {
    return {.write = [this](absl::string_view text) { text_.append(text.data(), text.size()); },
            .columns = [this] { return columns_; },
            .unicode = unicode_};
  }

  // What was written since the last call.
  std::string Written() { return std::exchange(text_, ""); }

  FakeClock clock_;
  int columns_ = 0;
  bool unicode_ = false;

 private:
  std::string text_;
};

TEST_F(ProgressTest, WritesALineEveryTenSecondsToALog) {
  Progress progress(Output(), clock_);
  progress.Begin("grpo", 200);
  for (int step = 1; step <= 50; ++step) {
    clock_.Advance(absl::Seconds(1));
    progress.Update(step, {{"accuracy", 0.41}, {"reward", 0.375}});
  }
  EXPECT_EQ(Written(),
            "grpo 10/200 (5%), 0:10, 3:10 left, accuracy 0.410, reward 0.375\n"
            "grpo 20/200 (10%), 0:20, 3:00 left, accuracy 0.410, reward 0.375\n"
            "grpo 30/200 (15%), 0:30, 2:50 left, accuracy 0.410, reward 0.375\n"
            "grpo 40/200 (20%), 0:40, 2:40 left, accuracy 0.410, reward 0.375\n"
            "grpo 50/200 (25%), 0:50, 2:30 left, accuracy 0.410, reward 0.375\n");
}

TEST_F(ProgressTest, ALongRunFillsItsLogWithNoMoreThanAHundredLines) {
  Progress progress(Output(), clock_);
  progress.Begin("grpo", 10'000);
  for (int step = 1; step <= 10'000; ++step) {
    clock_.Advance(absl::Seconds(5));
    progress.Update(step, {});
  }
  const std::string written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 100);
  EXPECT_TRUE(absl::StrContains(written, "grpo 9900/10000 (99%), 13:45:00, 8:20 left\n")) << written;
}

TEST_F(ProgressTest, EscapesWhatWouldChangeATerminal) {
  for (const int columns : {0, 60, 300}) {
    columns_ = columns;
    Progress progress(Output(), clock_);
    progress.Begin(kHostileText, 2);
    progress.Doing(kHostileText);
    clock_.Advance(absl::Minutes(1));
    progress.Tick();
    clock_.Advance(absl::Minutes(1));
    progress.Update(1, {{kHostileText, 1, kHostileText}});
    progress.End(kHostileText);
    std::string written = absl::StrReplaceAll(Written(), {{"\r", ""}, {"\x1b[K", ""}});
    EXPECT_TRUE(absl::EndsWith(written, "\n"));
    written.pop_back();
    EXPECT_TRUE(IsSafeForTerminals(written, columns == 0 ? "\n" : "")) << EscapeForTerminal(written);
    EXPECT_FALSE(absl::StrContains(written, "\nFAKE"));
  }
}

TEST_F(ProgressTest, LeavesOneLineAtTheEndOfAPhase) {
  Progress progress(Output(), clock_);
  progress.Begin("warm-up", 0);
  clock_.Advance(absl::Seconds(7));
  progress.Update(165, {{"accuracy", 0.301}});
  progress.End("stopped at 0.3");
  EXPECT_EQ(Written(), "warm-up: 165 steps in 0:07, accuracy 0.301; stopped at 0.3\n");
  progress.End();
  EXPECT_EQ(Written(), "");
  progress.Begin("generating", 2, 0, "answer");
  progress.Update(1, {});
  progress.End();
  EXPECT_EQ(Written(), "generating: 1 answer in 0:00\n");
}

TEST_F(ProgressTest, RedrawsALineInPlaceOnATerminal) {
  columns_ = 80;
  Progress progress(Output(), clock_);
  progress.Begin("grpo", 4);
  EXPECT_EQ(Written(), "\rgrpo  ----------------------------------------  0/4  0:00\x1b[K");
  clock_.Advance(absl::Seconds(10));
  progress.Update(1, {{"accuracy", 0.5}});
  EXPECT_EQ(Written(), "\rgrpo  ########---------------------------  1/4  0:10, 0:30 left  accuracy 0.500\x1b[K");
  clock_.Advance(absl::Milliseconds(99));
  progress.Update(2, {{"accuracy", 0.5}, {"reward", 12.25}});
  EXPECT_EQ(Written(), "") << "redrawn at most ten times a second";
  clock_.Advance(absl::Milliseconds(1));
  progress.Update(2, {{"accuracy", 0.5}, {"reward", 12.25}});
  EXPECT_EQ(Written(), "\rgrpo  ###########-----------  2/4  0:10, 0:10 left  accuracy 0.500  reward 12.2\x1b[K");
  progress.Update(4, {{"reward", 12.25}});
  progress.End();
  EXPECT_TRUE(absl::EndsWith(Written(), "\r\x1b[Kgrpo: 4 steps in 0:10, reward 12.2\n")) << "of the last step only";
}

TEST_F(ProgressTest, AFigureHasItsNote) {
  Progress progress(Output(), clock_);
  progress.Begin("dpo", 6);
  progress.Update(6, {{"accuracy", 1}, {"val accuracy", 0.5, " (step 0)"}});
  progress.End();
  EXPECT_EQ(Written(), "dpo: 6 steps in 0:00, accuracy 1.000, val accuracy 0.500 (step 0)\n");
}

TEST_F(ProgressTest, ALogIsTickedMoreAndMoreSeldomUntilThereIsAStep) {
  Progress progress(Output(), clock_);
  progress.Begin("grpo", 20);
  progress.Update(0, {});
  progress.Doing("rollout");
  const auto tick = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock_.Advance(absl::Seconds(1));
      progress.Tick();
    }
    return Written();
  };
  EXPECT_EQ(tick(35), "grpo 0/20 (0%), 0:10, rollout\ngrpo 0/20 (0%), 0:30, rollout\n");
  progress.Update(1, {});
  Written();
  EXPECT_EQ(tick(100), "");
}

TEST_F(ProgressTest, ATickRedrawsATerminalWithTheWorkOfTheMoment) {
  columns_ = 80;
  Progress progress(Output(), clock_);
  progress.Tick();
  EXPECT_EQ(Written(), "") << "nothing has begun";
  progress.Begin("grpo", 4);
  Written();
  progress.Doing("validating");
  clock_.Advance(absl::Seconds(3));
  progress.Tick();
  EXPECT_EQ(Written(), "\rgrpo  ----------------------------------------  0/4  0:03, validating\x1b[K");
  clock_.Advance(absl::Seconds(1));
  progress.Update(1, {});
  EXPECT_EQ(Written(), "\rgrpo  ##########------------------------------  1/4  0:04, 0:12 left\x1b[K");
}

TEST_F(ProgressTest, APhaseWithoutStepsLeavesNoLine) {
  {
    Progress progress(Output(), clock_);
    progress.Begin("preparing", 0, 0, "");
    progress.Doing("reading the data");
    clock_.Advance(absl::Seconds(12));
    progress.Tick();
    EXPECT_EQ(Written(), "preparing, 0:12, reading the data\n");
    columns_ = 60;
    progress.Begin("preparing", 0, 0, "");
    EXPECT_EQ(Written(), "\rpreparing  0:00\x1b[K");
  }
  EXPECT_EQ(Written(), "\r\x1b[K");
}

TEST_F(ProgressTest, ATickerTicksEverySecond) {
  columns_ = 80;
  Progress progress(Output(), clock_);
  progress.Begin("preparing", 0, 0, "");
  Written();
  const ProgressTicker ticker(progress, clock_);
  for (int second = 1; second <= 2; ++second) {
    clock_.AwaitWaiters(1);
    clock_.Advance(absl::Seconds(1));
    clock_.AwaitWaiters(1);
    EXPECT_EQ(Written(), absl::StrCat("\rpreparing  0:0", second, "\x1b[K"));
  }
}

TEST_F(ProgressTest, FitsIntoAnyTerminal) {
  unicode_ = true;
  Progress progress(Output(), clock_);
  for (columns_ = 1; columns_ < 150; ++columns_) {
    progress.Begin("grpo", 1000);
    clock_.Advance(absl::Seconds(10));
    progress.Update(500, {{"accuracy", 0.41}, {"reward", 0.38}, {"tokens/s", 12345.6}});
    const std::vector<std::string> drawings = absl::StrSplit(Written(), '\r');
    std::string line = drawings.back();
    ASSERT_TRUE(absl::EndsWith(line, "\x1b[K"));
    line.resize(line.size() - 3);
    // Characters, not bytes.
    const auto width = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
    EXPECT_LT(width, columns_) << line;
    EXPECT_EQ(absl::StrContains(line, "tokens/s 12346"), columns_ > 89) << columns_ << ": " << line;
    EXPECT_EQ(absl::StrContains(line, "━"), columns_ > 43) << columns_ << ": " << line;
  }
}

TEST_F(ProgressTest, SaysWhereARunStoppedThatDidNotEnd) {
  columns_ = 60;
  {
    Progress progress(Output(), clock_);
    progress.Begin("grpo", 200);
    clock_.Advance(absl::Seconds(75));
    progress.Update(37, {{"accuracy", 0.5}});
    Written();
  }
  EXPECT_EQ(Written(), "\r\x1b[Kgrpo: stopped after 37/200 steps in 1:15, accuracy 0.500\n");
}

TEST_F(ProgressTest, ShowsSmallLargeAndUndefinedFigures) {
  Progress progress(Output(), clock_);
  progress.Begin("grpo", 1);
  progress.Update(1, {{"lr", 4e-4}, {"tokens/s", 12345.6}, {"length", 123.45}, {"kl", 0.0}, {"loss", std::nan("")}});
  progress.End();
  EXPECT_EQ(Written(), "grpo: 1 step in 0:00, lr 4.0e-04, tokens/s 12346, length 123.5, kl 0.000, loss nan\n");
}

}  // namespace
}  // namespace tdock::trainer
