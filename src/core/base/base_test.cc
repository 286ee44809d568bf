#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/huge_pages.h"
#include "core/base/ranges.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/limited_env.h"

namespace tdock {
namespace {

std::string MakeTempFolder() {
  std::string path = testing::TempDir() + "/base_test_XXXXXX";
  return ::mkdtemp(path.data());
}

TEST(FakeClock, WakesAWaiterOnlyWhenItsDeadlineHasPassed) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  std::atomic<bool> expired = false;
  std::thread waiter([&] {
    MutexLock lock(mu);
    while (clock.Now() < deadline) clock.Wait(cv, mu, deadline);
    expired = true;
  });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(4));
  clock.AwaitWaiters(1);
  EXPECT_FALSE(expired);
  clock.Advance(absl::Seconds(1));
  waiter.join();
  EXPECT_TRUE(expired);
}

TEST(FakeClock, AWaiterSleepsUntilItIsNotified) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  bool ready = false;
  int wakes = 0;
  std::thread waiter([&] {
    MutexLock lock(mu);
    while (!ready) {
      clock.Wait(cv, mu, absl::InfiniteFuture());
      ++wakes;
    }
  });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Hours(1));
  clock.Advance(absl::Hours(1));
  {
    MutexLock lock(mu);
    ready = true;
    cv.NotifyAll();
  }
  waiter.join();
  // The system may wake a thread for no reason, but hardly twice.
  EXPECT_LE(wakes, 2);
}

TEST(FakeClock, ManyAdvancesLoseNoWaiter) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  constexpr int kWaits = 2'000;
  std::atomic<int> running = 2;
  const auto wait = [&] {
    for (int i = 0; i < kWaits; ++i) {
      MutexLock lock(mu);
      const absl::Time deadline = clock.Now() + absl::Seconds(1);
      while (clock.Now() < deadline) clock.Wait(cv, mu, deadline);
    }
    --running;
  };
  std::thread first(wait), second(wait);
  while (running > 0) clock.Advance(absl::Milliseconds(700));
  first.join();
  second.join();
}

TEST(FakeClock, AnAlarmCallsWhenItsTimeHasCome) {
  FakeClock clock;
  std::vector<int> calls;
  Alarm late(clock), early(clock), cancelled(clock), never(clock);
  const absl::Time now = clock.Now();
  EXPECT_TRUE(late.Set(now + absl::Seconds(5), [&] { calls.push_back(5); }));
  EXPECT_TRUE(early.Set(now + absl::Seconds(9), [&] { calls.push_back(9); }));
  EXPECT_TRUE(early.Set(now + absl::Seconds(2), [&] {
    calls.push_back(2);
    early.Cancel();
    EXPECT_TRUE(early.Set(now + absl::Seconds(6), [&] { calls.push_back(6); }));
  }));
  EXPECT_TRUE(cancelled.Set(now + absl::Seconds(3), [&] { calls.push_back(3); }));
  EXPECT_TRUE(never.Set(absl::InfiniteFuture(), [&] { calls.push_back(0); }));
  clock.AwaitWaiters(4);
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(calls.empty());
  cancelled.Cancel();
  clock.Advance(absl::Seconds(4));
  EXPECT_EQ(calls, (std::vector<int>{2, 5}));
  clock.Advance(absl::Seconds(100));
  EXPECT_EQ(calls, (std::vector<int>{2, 5, 6}));
  EXPECT_FALSE(late.Set(clock.Now(), [&] { calls.push_back(7); }));
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(calls.size(), 3u);
}

TEST(RealClock, CallsItsAlarmsInTheirOrderAndNoneThatIsCancelled) {
  Clock& clock = Clock::Real();
  Mutex mu;
  CondVar changed;
  bool called = false;
  for (absl::Duration ahead = absl::Milliseconds(50); !called; ahead *= 2) {
    const auto calls = std::make_shared<std::vector<int>>();
    const auto note = [&, calls](int call) {
      return [&, calls, call] {
        MutexLock lock(mu);
        calls->push_back(call);
        changed.NotifyAll();
      };
    };
    Alarm first(clock), second(clock), cancelled(clock), far(clock);
    // The calls take this lock, so the first one keeps the others waiting until the third alarm is cancelled.
    MutexLock lock(mu);
    const absl::Time now = clock.Now();
    ASSERT_TRUE(far.Set(absl::InfiniteFuture(), note(4)));
    second.Set(now + 3 * ahead, note(2));
    cancelled.Set(now + 2 * ahead, note(3));
    // A machine under load may be late. The next round has more time.
    if (!first.Set(now + ahead, note(1))) continue;
    cancelled.Cancel();
    while (calls->size() < 2) changed.Wait(mu);
    EXPECT_EQ(*calls, (std::vector<int>{1, 2}));
    EXPECT_GE(clock.Now(), now + 3 * ahead);
    EXPECT_FALSE(first.Set(now, note(5)));
    called = true;
  }
}

TEST(RealClock, WaitEndsAtItsDeadline) {
  Clock& clock = Clock::Real();
  Mutex mu;
  CondVar cv;
  MutexLock lock(mu);
  const absl::Time deadline = clock.Now() + absl::Milliseconds(5);
  while (clock.Now() < deadline) clock.Wait(cv, mu, deadline);
  EXPECT_GE(clock.Now(), deadline);
}

TEST(RealClock, AnInfiniteDeadlineDoesNotOverflow) {
  Clock& clock = Clock::Real();
  Mutex mu;
  CondVar cv;
  bool ready = false;
  std::thread notifier([&] {
    MutexLock lock(mu);
    ready = true;
    cv.NotifyAll();
  });
  {
    MutexLock lock(mu);
    while (!ready) clock.Wait(cv, mu, absl::InfiniteFuture());
  }
  notifier.join();
}

TEST(Rng, GivesTheSameNumbersEverywhere) {
  // SplitMix64's published first outputs for seed 0.
  EXPECT_EQ(MixBits(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15ULL), 0x6e789e6aa1b965f4ULL);
}

TEST(Rng, BelowIsUniformAndShuffleIsAPermutation) {
  Rng rng(7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100'000; ++i) ++counts[rng.Below(10)];
  for (int count : counts) EXPECT_NEAR(count, 10'000, 500);

  std::vector<int> items(100);
  std::iota(items.begin(), items.end(), 0);
  rng.Shuffle(std::span(items));
  EXPECT_FALSE(std::is_sorted(items.begin(), items.end()));
  EXPECT_EQ(std::set<int>(items.begin(), items.end()).size(), 100u);
}

TEST(Env, WritesReadsMapsAndLists) {
  Env& env = Env::Real();
  const std::string folder = MakeTempFolder();
  ASSERT_TRUE(env.CreateFolders(folder + "/a/b").ok());
  ASSERT_TRUE(WriteFileAtomically(env, folder + "/a/b/file", "first").ok());
  ASSERT_TRUE(WriteFileAtomically(env, folder + "/a/b/file", "second").ok());
  EXPECT_EQ(*env.ReadFile(folder + "/a/b/file"), "second");
  auto mapped = env.MapFile(folder + "/a/b/file");
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ((*mapped)->bytes().size(), 6u);
  auto appended = env.OpenForWriting(folder + "/a/b/file", WriteMode::kAppend);
  ASSERT_TRUE((*appended)->Append(" third").ok());
  ASSERT_TRUE((*appended)->Close().ok());
  EXPECT_EQ(*env.ReadFile(folder + "/a/b/file"), "second third");
  EXPECT_EQ(*env.List(folder + "/a/b"), std::vector<std::string>{"file"});
}

TEST(Env, ReadsFromAnyPlaceOfAFile) {
  Env& env = Env::Real();
  const std::string path = testing::TempDir() + "/read_at";
  ASSERT_TRUE(WriteFileAtomically(env, path, "0123456789").ok());
  const auto file = env.OpenForReading(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 10u);
  std::string into(4, ' ');
  EXPECT_TRUE((*file)->ReadAt(6, into).ok());
  EXPECT_EQ(into, "6789");
  const absl::Status beyond = (*file)->ReadAt(7, into);
  EXPECT_THAT(beyond, Fails(absl::StatusCode::kOutOfRange, {path, "byte 10"}));
  EXPECT_EQ(env.OpenForReading(path + "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(env.OpenForReading("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Env, ReadsUpToASize) {
  Env& env = Env::Real();
  const std::string path = testing::TempDir() + "/read_up_to";
  ASSERT_TRUE(WriteFileAtomically(env, path, "0123456789").ok());
  EXPECT_EQ(*ReadFileUpTo(env, path, 10), "0123456789");
  ASSERT_EQ(::truncate(path.c_str(), off_t{1} << 40), 0);  // no block of the rest is on the disk
  const absl::Status huge = ReadFileUpTo(env, path, 10).status();
  EXPECT_THAT(huge, Fails(absl::StatusCode::kInvalidArgument, {path, "1099511627776 bytes", "at most 10"}));
  EXPECT_EQ(ReadFileUpTo(env, path + "x", 10).status().code(), absl::StatusCode::kNotFound);
}

TEST(Env, ErrorsNameTheFileAndTheReason) {
  const auto missing = Env::Real().ReadFile("/nonexistent/file");
  EXPECT_THAT(missing.status(), Fails(absl::StatusCode::kNotFound, {"/nonexistent/file", strerror(ENOENT)}));
  EXPECT_EQ(Env::Real().MapFile("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Env, WritersOfTheSameFileDoNotMixTheirBytes) {
  Env& env = Env::Real();
  const std::string path = MakeTempFolder() + "/file";
  // The second one begins and ends while the first one writes, as a thread of the same number on another host may.
  const absl::Status written = WriteFileAtomically(env, path, [&](WritableFile& file) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(file.Append("first "));
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, path, "second"));
    return file.Append("and last");
  });
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(*env.ReadFile(path), "first and last");
}

TEST(LimitedEnv, AFullDiskKeepsTheOldFileAndLeavesNothingAside) {
  const std::string folder = MakeTempFolder();
  LimitedEnv env(Env::Real(), 10);
  ASSERT_TRUE(WriteFileAtomically(env, folder + "/file", "12345678").ok());
  const absl::Status full = WriteFileAtomically(env, folder + "/file", "abcdefgh");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*env.ReadFile(folder + "/file"), "12345678");
  EXPECT_EQ(env.List(folder)->size(), 1u);
}

// Does something else before or after a rename.
class RenameEnv final : public LimitedEnv {
 public:
  RenameEnv() : LimitedEnv(Env::Real(), 1'000'000) {}

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (before) std::exchange(before, nullptr)();
    const absl::Status status = LimitedEnv::Rename(from, to);
    return status.ok() ? after : status;
  }
  std::function<void()> before;
  absl::Status after;
};

TEST(WriteFileAtomically, OfAWriterThatFailsLeavesTheOldFile) {
  const std::string folder = MakeTempFolder();
  Env& env = Env::Real();
  const auto write = [](const absl::Status& end) {
    return [end](WritableFile& file) -> absl::Status {
      for (const char* piece : {"one ", "piece ", "after another"}) {
        if (absl::Status status = file.Append(piece); !status.ok()) return status;
      }
      return end;
    };
  };
  ASSERT_TRUE(WriteFileAtomically(env, folder + "/file", write(absl::OkStatus())).ok());
  EXPECT_EQ(WriteFileAtomically(env, folder + "/file", write(absl::AbortedError("no more"))).message(), "no more");
  EXPECT_EQ(*env.ReadFile(folder + "/file"), "one piece after another");
  EXPECT_EQ(env.List(folder)->size(), 1u);
}

TEST(Env, BytesThatAreReleasedCanBeReadAgain) {
  const std::string path = MakeTempFolder() + "/file";
  const std::string contents(100'000, 'x');
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, contents).ok());
  const auto file = Env::Real().MapFile(path);
  ASSERT_TRUE(file.ok());
  const auto text = [&] {
    return absl::string_view(reinterpret_cast<const char*>((*file)->bytes().data()), (*file)->bytes().size());
  };
  EXPECT_EQ(text(), contents);
  (*file)->Release((*file)->bytes().subspan(5'000, 50'000));
  (*file)->Release((*file)->bytes().subspan(10, 20));
  EXPECT_EQ(text(), contents);
}

TEST(WriteFileAtomically, ThreadsThatWriteTheSameFileDoNotMixTheirs) {
  const std::string path = MakeTempFolder() + "/file";
  RenameEnv env;
  absl::Status other;
  env.before = [&] {
    std::thread([&] {
      other = WriteFileAtomically(env, path, "another's");
      EXPECT_EQ(*env.ReadFile(path), "another's");
    }).join();
  };
  EXPECT_EQ(WriteFileAtomically(env, path, "one's own"), absl::OkStatus());
  EXPECT_EQ(other, absl::OkStatus());
  EXPECT_EQ(*env.ReadFile(path), "one's own");
}

TEST(WriteFileAtomically, TheNewFileIsThereWhereOnlyItsFolderCouldNotBeSynced) {
  const std::string folder = MakeTempFolder();
  RenameEnv env;
  ASSERT_EQ(WriteFileAtomically(env, folder + "/file", "old"), absl::OkStatus());
  env.after = absl::UnavailableError("cannot sync the folder");
  EXPECT_EQ(WriteFileAtomically(env, folder + "/file", "new"), env.after);
  EXPECT_EQ(*env.ReadFile(folder + "/file"), "new");
  EXPECT_EQ(env.List(folder)->size(), 1u);
}

TEST(HugePageAllocator, PiecesOfEverySizeHoldTheirContents) {
  std::vector<uint64_t, HugePageAllocator<uint64_t>> numbers;
  for (uint64_t i = 0; i < 1'000'000; ++i) numbers.push_back(i);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(numbers.data()) % (uintptr_t{2} << 20), 0u);
  for (uint64_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], i);
  EXPECT_THROW(HugePageAllocator<uint64_t>().allocate(SIZE_MAX / 4), std::bad_array_new_length);
}

TEST(Status, AnnotateKeepsTheCode) {
  const absl::Status status = Annotate(absl::NotFoundError("no such row"), "stage reward");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "stage reward: no such row");
}

TEST(Ranges, AreDisjointAndJoinWhereTheyMeet) {
  Ranges ranges;
  EXPECT_TRUE(ranges.Add(10, 20));
  EXPECT_TRUE(ranges.Add(30, 40));
  for (const auto& [begin, end] :
       {std::pair(10, 20), {0, 11}, {19, 21}, {12, 13}, {25, 35}, {0, 100}, {39, 40}, {5, 4}}) {
    EXPECT_FALSE(ranges.Add(static_cast<uint64_t>(begin), static_cast<uint64_t>(end))) << begin << " to " << end;
  }
  EXPECT_TRUE(ranges.Add(15, 15));
  EXPECT_EQ(ranges.total(), 20u);
  EXPECT_TRUE(ranges.Add(20, 30));
  EXPECT_FALSE(ranges.Add(29, 31));
  EXPECT_TRUE(ranges.Add(0, 10));
  EXPECT_EQ(ranges.total(), 40u);
}

}  // namespace
}  // namespace tdock
