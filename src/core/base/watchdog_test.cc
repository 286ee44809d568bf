#include "core/base/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>

#include "absl/time/clock.h"

namespace tdock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What was reported.
class Log {
 public:
  void Add(const std::string& text) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    texts_.push_back(text);
    changed_.NotifyAll();
  }
  std::string Next() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (texts_.empty()) changed_.Wait(mu_);
    std::string text = texts_.front();
    texts_.pop_front();
    return text;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> texts_ TDOCK_GUARDED_BY(mu_);
};

class WatchdogTest : public testing::Test {
 protected:
  WatchdogOptions Options() {
    return {.period = absl::Milliseconds(5),
            .stall_after = absl::Milliseconds(100),
            .report = [this](const std::string& text) { log_.Add(text); }};
  }

  Log log_;
  Heartbeats heartbeats_;
};

TEST_F(WatchdogTest, ALockThatIsHeldIsReportedOnceAndWhenItIsFreeAgain) {
  Mutex held;
  held.Lock();
  Watchdog watchdog(heartbeats_,
                    {{.name = "the table",
                      .touch =
                          [&](const auto& say) {
                            say("row 7 of the table");
                            MutexLock lock(held);
                          }}},
                    Options());
  EXPECT_THAT(log_.Next(), HasSubstr("a call has been stalled for"));
  EXPECT_THAT(watchdog.CurrentStalls(), ElementsAre(HasSubstr("waits for row 7 of the table")));
  const absl::Time begin = absl::Now();
  const absl::Status status = watchdog.Check(absl::Seconds(60));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30)) << "what is known to hang is not waited for";
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 7 of the table"));
  EXPECT_EQ(watchdog.stalls(), 1);
  held.Unlock();
  EXPECT_THAT(log_.Next(), HasSubstr("a call continues"));
  EXPECT_EQ(watchdog.Check(absl::Seconds(60)), absl::OkStatus());
  EXPECT_EQ(watchdog.stalls(), 1);
}

TEST_F(WatchdogTest, AThreadThatStandsStillIsReportedWithWhatItDoes) {
  const std::shared_ptr<Heartbeat> loop = heartbeats_.Add("loop 0");
  Watchdog watchdog(heartbeats_, {}, Options());
  EXPECT_EQ(watchdog.Check(absl::Seconds(60)), absl::OkStatus());
  loop->Begin("handles events");
  loop->Describe("does a take", "of client 'trainer'");
  EXPECT_THAT(log_.Next(),
              testing::AllOf(HasSubstr("loop 0 has been stalled"), HasSubstr("it does a take of client 'trainer'")));
  loop->End();
  EXPECT_THAT(log_.Next(), HasSubstr("loop 0 continues"));
  EXPECT_THAT(watchdog.CurrentStalls(), IsEmpty());
}

TEST_F(WatchdogTest, AThreadThatIsIdleDoesNotStandStill) {
  const std::shared_ptr<Heartbeat> loop = heartbeats_.Add("loop 0");
  Watchdog watchdog(heartbeats_, {}, Options());
  loop->Begin("handles events");
  loop->End();
  absl::SleepFor(absl::Milliseconds(250));
  EXPECT_THAT(watchdog.CurrentStalls(), IsEmpty());
  EXPECT_EQ(watchdog.stalls(), 0);
}

TEST_F(WatchdogTest, AnAnswerThatDoesNotComeInTimeIsAnError) {
  Mutex held;
  Watchdog watchdog(heartbeats_, {{.name = "the table", .touch = [&](const auto&) { MutexLock lock(held); }}},
                    {.period = absl::Hours(1), .stall_after = absl::Hours(1)});
  EXPECT_EQ(watchdog.Check(absl::Seconds(60)), absl::OkStatus());
  held.Lock();
  const absl::Status status = watchdog.Check(absl::Milliseconds(50));
  held.Unlock();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the table"));
}

}  // namespace
}  // namespace tdock
