#include "trainer/loop/stop_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

class StopNoticeTest : public testing::Test {
 protected:
  StopNoticeTest() {
    context_.log = [this](const std::string& line) {
      MutexLock lock(mu_);
      log_.push_back(line);
    };
  }
  std::vector<std::string> Log() {
    MutexLock lock(mu_);
    return log_;
  }

  FakeClock clock_;
  Progress progress_{{.write = [](absl::string_view) {}, .columns = [] { return 0; }}, clock_};
  std::atomic<bool> stop_ = false;
  RunContext context_{Env::Real(), clock_, progress_, &stop_};
  Mutex mu_;
  std::vector<std::string> log_ TDOCK_GUARDED_BY(mu_);
};

TEST_F(StopNoticeTest, SaysWhatWouldBeLostOnceItTakesLong) {
  const StopNotice notice(context_, [] { return "Step 7 is at stake."; });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Minutes(10));
  clock_.AwaitWaiters(1);
  EXPECT_THAT(Log(), ElementsAre());
  stop_ = true;
  clock_.Advance(absl::Milliseconds(100));
  clock_.AwaitWaiters(1);
  const auto first = Mentions({"interrupted", "second signal"});
  EXPECT_THAT(Log(), ElementsAre(first));
  clock_.Advance(absl::Seconds(29));
  EXPECT_THAT(Log(), ElementsAre(first));
  clock_.Advance(absl::Seconds(1));
  while (Log().size() < 2) std::this_thread::yield();
  EXPECT_THAT(Log(), ElementsAre(first, Mentions({"Step 7 is at stake."})));
}

TEST_F(StopNoticeTest, SaysNothingOfARunThatEnds) {
  {
    const StopNotice notice(context_, [] { return ""; });
    clock_.AwaitWaiters(1);
  }
  EXPECT_THAT(Log(), ElementsAre());
}

TEST_F(StopNoticeTest, TellsOfATimeThatIsOver) {
  context_.stop_at = clock_.Now() + absl::Minutes(1);
  const StopNotice notice(context_, [] { return ""; });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Minutes(1));
  clock_.AwaitWaiters(1);
  EXPECT_THAT(Log(), ElementsAre(Mentions({"trainer.max_minutes"})));
}

}  // namespace
}  // namespace tdock::trainer
