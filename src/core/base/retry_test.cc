#include "core/base/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"

namespace tdock {
namespace {

constexpr BackoffPolicy kEven = {
    .initial = absl::Milliseconds(100), .max = absl::Milliseconds(350), .multiplier = 2, .jitter = 0};

TEST(Backoff, GrowsToItsMaximumAndStartsAgainWhenReset) {
  Backoff backoff(kEven, /*seed=*/1);
  for (const int milliseconds : {100, 200, 350, 350}) EXPECT_EQ(backoff.Next(), absl::Milliseconds(milliseconds));
  backoff.Reset();
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(100));
}

TEST(Backoff, JitterShortensEachWaitByADifferentPartUpToItsShare) {
  BackoffPolicy policy = kEven;
  policy.jitter = 0.5;
  policy.multiplier = 1;
  Backoff backoff(policy, /*seed=*/7);
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 1000; ++i) waits.push_back(backoff.Next());
  const auto [least, most] = std::minmax_element(waits.begin(), waits.end());
  EXPECT_GE(*least, absl::Milliseconds(50));
  EXPECT_LT(*least, absl::Milliseconds(51));
  EXPECT_LE(*most, absl::Milliseconds(100));
  EXPECT_GT(*most, absl::Milliseconds(99));
}

TEST(Retry, CallsAgainAfterEachWaitUntilItSucceeds) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  std::vector<absl::Duration> calls;
  absl::Status status;
  std::thread caller([&] {
    status = Retry(clock, absl::InfiniteFuture(), Backoff(kEven, 1), absl::IsUnavailable, [&] {
      calls.push_back(clock.Now() - start);
      return calls.size() < 4 ? absl::UnavailableError("refused") : absl::OkStatus();
    });
  });
  for (const int milliseconds : {100, 200, 350}) {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Milliseconds(milliseconds));
  }
  caller.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(calls, testing::ElementsAre(absl::ZeroDuration(), absl::Milliseconds(100), absl::Milliseconds(300),
                                          absl::Milliseconds(650)));
}

TEST(Retry, ReturnsAnErrorThatIsNotRetryableAtOnce) {
  FakeClock clock;
  int calls = 0;
  const absl::Status status = Retry(clock, absl::InfiniteFuture(), Backoff(kEven, 1), absl::IsUnavailable, [&] {
    ++calls;
    return absl::InvalidArgumentError("no such column");
  });
  EXPECT_EQ(status, absl::InvalidArgumentError("no such column"));
  EXPECT_EQ(calls, 1);
}

TEST(Retry, GivesUpWithTheLastErrorWhenTheNextAttemptWouldBeAtTheDeadline) {
  FakeClock clock;
  absl::Status status;
  std::thread caller([&] {
    status = Retry(clock, clock.Now() + absl::Milliseconds(300), Backoff(kEven, 1), absl::IsUnavailable,
                   [] { return absl::UnavailableError("refused"); });
  });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Milliseconds(100));
  caller.join();  // the next would be 200 ms later
  EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, {"2 attempts", "refused"}));
}

TEST(Retry, CallsOnceEvenWhenTheDeadlineHasPassed) {
  FakeClock clock;
  int calls = 0;
  const absl::Status status = Retry(clock, absl::InfinitePast(), Backoff(kEven, 1), absl::IsUnavailable, [&] {
    ++calls;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tdock
