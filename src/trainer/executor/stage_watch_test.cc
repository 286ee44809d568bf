#include "trainer/executor/stage_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"

namespace tdock::trainer {
namespace {

class StageWatchTest : public testing::Test {
 protected:
  StageWatch::Options Options() {
    return {.clock = clock_,
            .patience = absl::Seconds(60),
            .give_up =
                [this](const absl::Status& status) {
                  const MutexLock lock(mu_);
                  given_up_.push_back(status);
                  changed_.NotifyAll();
                },
            .grace = absl::Seconds(10)};
  }
  absl::Status AwaitGivenUp() {
    const MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kPatience);
    while (given_up_.empty() && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mu_, deadline);
    return given_up_.empty() ? absl::OkStatus() : given_up_.front();
  }
  size_t times_given_up() {
    const MutexLock lock(mu_);
    return given_up_.size();
  }
  // Once the watching thread has looked.
  void Advance(absl::Duration by) {
    clock_.AwaitWaiters(1);
    clock_.Advance(by);
    clock_.AwaitWaiters(1);
  }

  FakeClock clock_;
  Mutex mu_;
  CondVar changed_;
  std::vector<absl::Status> given_up_;
};

TEST_F(StageWatchTest, AStageThatGetsOnMayTakeItsTime) {
  StageWatch watch(Options());
  const absl::StatusOr<int> result = watch.Run("actor", "8 rows", [&]() -> absl::StatusOr<int> {
    for (int i = 0; i < 5; ++i) {
      Advance(absl::Seconds(50));
      watch.Progress();
    }
    return 7;
  });
  EXPECT_EQ(result, absl::StatusOr<int>(7));
  Advance(absl::Hours(1));  // nothing works
  EXPECT_EQ(watch.Run("actor", "8 rows", [] { return absl::AbortedError("its own"); }), absl::AbortedError("its own"));
  EXPECT_EQ(times_given_up(), 0);
}

TEST_F(StageWatchTest, AStageThatHangsIsGivenUpByNameAndRows) {
  StageWatch watch(Options());
  const auto is_told = Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'actor'", "8 rows", "60 s"});
  const absl::Status hung = watch.Run("actor", "8 rows", [&] {
    Advance(absl::Seconds(60));
    EXPECT_EQ(times_given_up(), 0);
    Advance(absl::Seconds(10));
    EXPECT_THAT(AwaitGivenUp(), is_told);
    return absl::OkStatus();
  });
  EXPECT_THAT(hung, is_told);
  EXPECT_EQ(watch.Run("actor", "8 rows", [] { return absl::OkStatus(); }), absl::OkStatus());
  EXPECT_EQ(times_given_up(), 1);
}

TEST_F(StageWatchTest, AStageThatComesBackTooLateEndsTheRunAllTheSame) {
  StageWatch watch(Options());
  const absl::Status status = watch.Run("actor", "8 rows", [&] {
    Advance(absl::Seconds(65));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'actor'", "8 rows", "65 s"}));
  Advance(absl::Hours(1));
  EXPECT_EQ(times_given_up(), 0);
}

}  // namespace
}  // namespace tdock::trainer
