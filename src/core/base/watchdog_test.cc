#include "core/base/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"

namespace tdock {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// What was reported.
class Log {
 public:
  void Add(const std::string& text) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    texts_.push_back(text);
    changed_.NotifyAll();
  }
  // Waits for the next report that mentions `name`, and skips others: on a loaded machine, any watched thread may stall
  // for a while.
  std::string Next(absl::string_view name) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (;;) {
      while (texts_.empty()) changed_.Wait(mu_);
      std::string text = texts_.front();
      texts_.pop_front();
      if (absl::StrContains(text, name)) return text;
    }
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
  bool told = false;
  std::promise<void> reached;
  Watchdog watchdog(heartbeats_,
                    {{.name = "the table",
                      .touch =
                          [&](const auto& say) {
                            say("row 7 of the table");
                            if (!std::exchange(told, true)) reached.set_value();
                            MutexLock lock(held);
                          }}},
                    Options());
  EXPECT_THAT(log_.Next("a call"), HasSubstr("stalled"));
  reached.get_future().wait();
  EXPECT_THAT(watchdog.CurrentStalls(), ElementsAre(HasSubstr("row 7 of the table")));
  // Check() does not wait for what hangs already.
  EXPECT_THAT(watchdog.Check(kNever), Fails(absl::StatusCode::kUnavailable, {"row 7 of the table"}));
  EXPECT_EQ(watchdog.stalls(), 1);
  held.Unlock();
  EXPECT_THAT(log_.Next("a call"), HasSubstr("continues"));
  EXPECT_TRUE(Eventually([&] { return watchdog.Check(kNever).ok(); }));
}

TEST_F(WatchdogTest, AThreadThatStandsStillIsReportedWithWhatItDoes) {
  const std::shared_ptr<Heartbeat> loop = heartbeats_.Add("loop 0");
  Watchdog watchdog(heartbeats_, {}, Options());
  EXPECT_TRUE(Eventually([&] { return watchdog.Check(kNever).ok(); }));
  loop->Begin("takes", "of client 'trainer'");
  EXPECT_THAT(log_.Next("loop 0"), Mentions({"stalled", "takes of client 'trainer'"}));
  loop->Describe("puts", "of client 'rollout'");
  EXPECT_THAT(watchdog.CurrentStalls(), Contains(Mentions({"loop 0", "puts of client 'rollout'"})));
  loop->End();
  EXPECT_THAT(log_.Next("loop 0"), HasSubstr("continues"));
  EXPECT_THAT(watchdog.CurrentStalls(), Not(Contains(HasSubstr("loop 0"))));
}

TEST_F(WatchdogTest, AThreadThatIsIdleDoesNotStandStill) {
  const std::shared_ptr<Heartbeat> idle = heartbeats_.Add("loop 0"), busy = heartbeats_.Add("loop 1");
  Watchdog watchdog(heartbeats_, {}, Options());
  idle->Begin("handles events");
  idle->End();
  // The watchdog notices the stall of the other one, which began later.
  busy->Begin("handles events");
  EXPECT_THAT(log_.Next("loop 1"), HasSubstr("stalled"));
  EXPECT_THAT(watchdog.CurrentStalls(), Contains(HasSubstr("loop 1")));
  EXPECT_THAT(watchdog.CurrentStalls(), Not(Contains(HasSubstr("loop 0"))));
  busy->End();
}

TEST_F(WatchdogTest, AnAnswerThatDoesNotComeInTimeIsAnError) {
  Mutex held;
  Watchdog watchdog(heartbeats_, {{.name = "the table", .touch = [&](const auto&) { MutexLock lock(held); }}},
                    {.period = absl::Hours(1), .stall_after = absl::Hours(1)});
  EXPECT_EQ(watchdog.Check(kNever), absl::OkStatus());
  held.Lock();
  // The thread that touches may need longer to begin.
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = watchdog.Check(absl::Milliseconds(50));
    return absl::StrContains(status.message(), "the table");
  }));
  held.Unlock();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tdock
