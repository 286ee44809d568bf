#include "trainer/executor/stage_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

constexpr char kPartition[] = "train";
constexpr int64_t kGroupSize = 4;

// A chain of stages over columns c0 → c1 → c2 → c3, the last of which completes. Each adds 1 to what it reads.
class StageThreadsTest : public testing::Test {
 protected:
  explicit StageThreadsTest(Clock& clock = Clock::Real()) : clock_(clock) {}

  static std::string Column(int number) { return absl::StrCat("c", number); }
  static std::string Name(int number) { return absl::StrCat("stage", number); }

  void SetUp() override {
    PartitionOptions options{.name = kPartition, .group_size = kGroupSize, .retain_for = {Name(3)}};
    for (int i = 0; i < 4; ++i) options.columns.push_back({Column(i), ColumnType::Dense(DType::kI32)});
    ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
    for (int i = 0; i < 4; ++i) {
      ConsumerOptions consumer{.name = Name(i), .reads = {Column(i)}, .unit = UnitOf(i)};
      if (i < 3) consumer.writes = {Column(i + 1)};
      ASSERT_EQ(dock_->RegisterConsumer(kPartition, consumer), absl::OkStatus());
    }
  }
  static Unit UnitOf(int number) { return number % 2 == 0 ? Unit::kGroup : Unit::kRow; }

  void Feed(int64_t groups) {
    PutRequest put{.partition = kPartition};
    std::vector<int32_t> values;
    for (int64_t i = 0; i < groups * kGroupSize; ++i) {
      put.groups.push_back(static_cast<GroupId>(next_group_ + i / kGroupSize));
      values.push_back(static_cast<int32_t>(i));
    }
    next_group_ += groups;
    ASSERT_EQ(put.batch.Add(Column(0), tdock::Column::FromValues(values)), absl::OkStatus());
    ASSERT_TRUE(dock_->Put(put).ok());
  }

  absl::Status Pass(int number, const Taken& taken) {
    {
      const std::lock_guard lock(mu_);
      takes_[number].emplace_back(taken.rows.ids().begin(), taken.rows.ids().end());
    }
    if (number == 3) {
      TDOCK_RETURN_IF_ERROR(dock_->Complete({.partition = kPartition, .lease = taken.lease}));
      const std::lock_guard lock(mu_);
      for (size_t i = 0; i < taken.rows.size(); ++i) {
        ++completed_[taken.rows.ids()[i]];
        sum_ += (*taken.rows.Get<int32_t>(i, Column(3)))[0];
      }
      return absl::OkStatus();
    }
    std::vector<int32_t> values;
    for (size_t i = 0; i < taken.rows.size(); ++i) {
      values.push_back((*taken.rows.Get<int32_t>(i, Column(number)))[0] + 1);
    }
    FillRequest put{
        .partition = kPartition, .rows = {taken.rows.ids().begin(), taken.rows.ids().end()}, .lease = taken.lease};
    TDOCK_RETURN_IF_ERROR(put.batch.Add(Column(number + 1), tdock::Column::FromValues(values)));
    return dock_->Fill(put);
  }

  std::vector<StageTask> Tasks() {
    std::vector<StageTask> tasks;
    for (int i = 0; i < 4; ++i) {
      tasks.push_back({.name = Name(i),
                       .group_size = UnitOf(i) == Unit::kGroup ? kGroupSize : 1,
                       .run = [this, i](const Taken& taken, const StageSigns&) { return Pass(i, taken); }});
    }
    return tasks;
  }

  StageThreads::Options UntilDone() {
    StageThreads::Options options{.clock = clock_, .timeline = timeline_, .until_done = true};
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mu_);
      log_.push_back(line);
    };
    return options;
  }

  Clock& clock_;
  const std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_});
  Timeline timeline_{clock_};
  int64_t next_group_ = 0;
  std::mutex mu_;
  std::map<int, std::vector<std::vector<RowId>>> takes_;
  std::map<RowId, int> completed_;
  int64_t sum_ = 0;
  std::vector<std::string> log_;
};

struct HeldClock {
  FakeClock fake_;
};

// Time passes once all stages but those that hang have come to rest, so that none of the others is ever taken for one
// that hangs.
class HangingStageTest : protected HeldClock, public StageThreadsTest {
 protected:
  HangingStageTest() : StageThreadsTest(fake_) {}

  // Waits until Describe() says these things.
  static void Await(const StageThreads& threads, const std::vector<std::string>& lines) {
    ASSERT_TRUE(Eventually([&] { return testing::Matches(Mentions(lines))(threads.Describe()); }))
        << threads.Describe();
  }
  absl::Status JoinWhileTimePasses(StageThreads& threads) {
    std::atomic<bool> joined = false;
    std::thread time([&] {
      for (; !joined; absl::SleepFor(absl::Milliseconds(1))) fake_.Advance(absl::Milliseconds(50));
    });
    absl::Status status = threads.Join();
    joined = true;
    time.join();
    return status;
  }
};

TEST_F(StageThreadsTest, WhatATaskHasTakenMeanwhileAndLeftIsReadyAgain) {
  for (const bool fails : {true, false}) {
    completed_.clear();
    log_.clear();
    Feed(1);
    std::vector<StageTask> tasks = Tasks();
    tasks[0].takes_more = tasks[0].restartable = true;
    tasks[0].run = [&, tries = 0](const Taken& taken, const StageSigns& signs) mutable -> absl::Status {
      if (++tries > 1) return Pass(0, taken);
      Feed(2);
      TDOCK_ASSIGN_OR_RETURN(const std::optional<Taken> more, signs.more());
      EXPECT_EQ(more->rows.size(), 2 * kGroupSize);
      TDOCK_ASSIGN_OR_RETURN(const std::optional<Taken> none, signs.more());
      EXPECT_FALSE(none.has_value());
      return fails ? absl::UnavailableError("not yet") : Pass(0, taken);
    };
    StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
    EXPECT_EQ(threads.Join(), absl::OkStatus());
    EXPECT_EQ(completed_.size(), 3 * kGroupSize);
    for (const auto& [row, times] : completed_) EXPECT_EQ(times, 1) << "row " << row;
    ASSERT_EQ(log_.size(), fails ? 1 : 0);
    if (fails) {
      EXPECT_THAT(log_[0], Mentions({"8 rows between 4 and 11", "those before", "not yet"}));
    }
  }
}

TEST_F(StageThreadsTest, EveryRowPassesThroughEveryStageOnce) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    completed_.clear();
    sum_ = 0;
    Feed(16);
    std::vector<StageTask> tasks = Tasks();
    for (StageTask& task : tasks) {
      task.most_units = 1 + static_cast<int64_t>(random() % 8);
      task.in_order = random() % 4 == 0;
      const auto pause = absl::Microseconds(random() % 300);
      task.run = [run = task.run, pause](const Taken& taken, const StageSigns& signs) {
        absl::SleepFor(pause);
        signs.progress();
        TDOCK_RETURN_IF_ERROR(signs.check_stop());
        return run(taken, signs);
      };
    }
    StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
    ASSERT_EQ(threads.Join(), absl::OkStatus()) << "seed " << seed;
    EXPECT_EQ(completed_.size(), 16 * kGroupSize);
    EXPECT_THAT(completed_, testing::Each(testing::Pair(testing::_, 1)));
    EXPECT_EQ(sum_, 64 * 63 / 2 + 3 * 64);
    EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 0);
  }
}

TEST_F(StageThreadsTest, WhatIsTakenInOrderDoesNotDependOnTiming) {
  for (int round = 0; round < 5; ++round) {
    Feed(6);
    std::vector<StageTask> tasks = Tasks();
    tasks[0].most_units = 1;
    tasks[1].most_units = 3;
    tasks[2].in_order = tasks[3].in_order = true;
    tasks[2].most_units = 4;
    StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
    ASSERT_EQ(threads.Join(), absl::OkStatus());
    ASSERT_EQ(takes_[2].size(), 2);
    EXPECT_EQ(takes_[2][0].size(), 4 * kGroupSize);
    EXPECT_EQ(takes_[2][1].size(), 2 * kGroupSize);
    ASSERT_EQ(takes_[3].size(), 1);
    EXPECT_TRUE(std::is_sorted(takes_[3][0].begin(), takes_[3][0].end()));
    takes_.clear();
  }
}

TEST_F(StageThreadsTest, AStageThatFailsEndsTheOthersAndGivesItsRowsBack) {
  Feed(4);
  std::vector<StageTask> tasks = Tasks();
  tasks[1].in_order = true;
  tasks[1].run = [](const Taken&, const StageSigns&) { return absl::UnavailableError("no scorer"); };
  StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
  EXPECT_THAT(threads.Join(),
              Fails(absl::StatusCode::kUnavailable, {"stage 'stage1'", "16 rows between 0 and 15", "no scorer"}));
  EXPECT_EQ(dock_->GetConsumerStatus(kPartition, Name(1))->ready, 16);
}

TEST_F(StageThreadsTest, AStageMayBeTriedAgainOnTheSameRows) {
  Feed(4);
  std::vector<StageTask> tasks = Tasks();
  std::atomic<int> calls = 0;
  tasks[1].restartable = true;
  tasks[1].run = [&, run = tasks[1].run](const Taken& taken, const StageSigns& signs) {
    return ++calls % 3 != 0 ? absl::UnavailableError("no scorer") : run(taken, signs);
  };
  StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
  EXPECT_EQ(threads.Join(), absl::OkStatus());
  EXPECT_EQ(completed_.size(), 16);
  EXPECT_THAT(log_, testing::Contains(Mentions({"stage 'stage1', ", "no scorer", "1 of 3"})));
}

TEST_F(StageThreadsTest, ButNotForEver) {
  Feed(1);
  std::vector<StageTask> tasks = Tasks();
  tasks[0].restartable = true;
  tasks[0].run = [](const Taken&, const StageSigns&) { return absl::UnavailableError("no scorer"); };
  StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
  EXPECT_THAT(threads.Join(),
              Fails(absl::StatusCode::kUnavailable, {"stage 'stage0'", "4 rows between 0 and 3", "no scorer"}));
  EXPECT_EQ(log_.size(), 3);
}

TEST_F(StageThreadsTest, DroppedRowsAreNotWaitedFor) {
  Feed(4);
  std::vector<StageTask> tasks = Tasks();
  tasks[0].most_units = 1;
  std::atomic<int> groups = 0;
  tasks[0].run = [&, run = tasks[0].run](const Taken& taken, const StageSigns& signs) {
    if (groups++ < 3) return run(taken, signs);
    absl::SleepFor(absl::Milliseconds(150));  // the others wait for it
    return dock_->Drop({.partition = kPartition, .lease = taken.lease});
  };
  StageThreads threads(*dock_, kPartition, std::move(tasks), UntilDone());
  EXPECT_EQ(threads.Join(), absl::OkStatus());
  EXPECT_EQ(completed_.size(), 12);
}

TEST_F(HangingStageTest, IsToldWithItsRows) {
  Feed(2);
  std::vector<StageTask> tasks = Tasks();
  std::atomic<bool> hangs = true;
  tasks[2].run = [&](const Taken&, const StageSigns&) {
    while (hangs) absl::SleepFor(absl::Milliseconds(1));
    return absl::CancelledError("let go");
  };
  StageThreads::Options options = UntilDone();
  options.patience = absl::Milliseconds(300);
  options.grace = absl::Milliseconds(100);
  absl::Status given_up;
  options.give_up = [&](const absl::Status& status) {
    given_up = status;
    hangs = false;
  };
  StageThreads threads(*dock_, kPartition, std::move(tasks), options);
  Await(threads, {"stage0: has ended", "stage1: has ended", "stage2: has worked"});
  const absl::Status status = JoinWhileTimePasses(threads);
  EXPECT_THAT(status, Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'stage2'"}));
  EXPECT_THAT(std::string(status.message()), testing::ContainsRegex("[48] rows between 0 and [37]"));
  EXPECT_EQ(given_up, status);
}

TEST_F(HangingStageTest, IsNotWaitedForWhenTheyAreToEnd) {
  Feed(2);
  std::vector<StageTask> tasks = Tasks();
  std::atomic<bool> hangs = true;
  tasks[1].run = [&](const Taken&, const StageSigns&) {
    while (hangs) absl::SleepFor(absl::Milliseconds(1));
    return absl::CancelledError("let go");
  };
  StageThreads::Options options = UntilDone();
  options.until_done = false;
  options.patience = options.grace = absl::Milliseconds(100);
  options.give_up = [&](const absl::Status&) { hangs = false; };
  StageThreads threads(*dock_, kPartition, std::move(tasks), options);
  Await(threads, {"stage0: has waited", "stage1: has worked"});
  threads.Stop();
  EXPECT_THAT(JoinWhileTimePasses(threads), Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'stage1', "}));
  EXPECT_FALSE(hangs);
}

TEST_F(HangingStageTest, RowsThatCannotComeAreSaid) {
  Feed(2);
  std::vector<StageTask> tasks = Tasks();
  tasks.erase(tasks.begin() + 1);
  StageThreads::Options options = UntilDone();
  options.patience = absl::Milliseconds(300);
  StageThreads threads(*dock_, kPartition, std::move(tasks), options);
  Await(threads, {"stage0: has ended", "stage2: has waited"});
  EXPECT_THAT(JoinWhileTimePasses(threads),
              Fails(absl::StatusCode::kDeadlineExceeded, {"0.3 s", "stage0: has ended", "stage2: has waited", "c2"}));
}

TEST_F(StageThreadsTest, StopEndsThoseThatWaitAndTellsThoseThatWork) {
  Feed(2);
  std::vector<StageTask> tasks = Tasks();
  std::atomic<bool> working = false;
  tasks[1].run = [&](const Taken&, const StageSigns& signs) {
    working = true;
    while (signs.check_stop().ok()) absl::SleepFor(absl::Milliseconds(1));
    return signs.check_stop();
  };
  StageThreads::Options options = UntilDone();
  options.until_done = false;
  StageThreads threads(*dock_, kPartition, std::move(tasks), options);
  while (!working) absl::SleepFor(absl::Milliseconds(1));
  threads.Stop();
  EXPECT_EQ(threads.Join(), absl::OkStatus());
  EXPECT_EQ(dock_->GetConsumerStatus(kPartition, Name(1))->leased, 0);
}

TEST_F(StageThreadsTest, ARunThatMustEndEndsThem) {
  Feed(2);
  std::atomic<bool> stop = false;
  StageThreads::Options options = UntilDone();
  options.until_done = false;
  options.check_stop = [&] { return stop ? absl::CancelledError("interrupted") : absl::OkStatus(); };
  StageThreads threads(*dock_, kPartition, Tasks(), options);
  absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(threads.status(), absl::OkStatus());
  stop = true;
  EXPECT_EQ(threads.Join(), absl::CancelledError("interrupted"));
}

TEST_F(StageThreadsTest, ASealedPartitionEndsThem) {
  Feed(3);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  StageThreads::Options options = UntilDone();
  options.until_done = false;
  options.until_sealed = true;
  StageThreads threads(*dock_, kPartition, Tasks(), options);
  EXPECT_EQ(threads.Join(), absl::OkStatus());
  EXPECT_EQ(completed_.size(), 12);
}

TEST_F(HangingStageTest, KeepsItsLeaseWhileItWorks) {
  ASSERT_EQ(dock_->RegisterConsumer(kPartition,
                                    {.name = "slow", .reads = {Column(0)}, .lease_duration = absl::Milliseconds(300)}),
            absl::OkStatus());
  Feed(1);
  FakeClock of_threads;  // on which only the threads wait, and the dock sets no alarm
  StageThreads::Options options{.clock = of_threads, .timeline = timeline_, .until_done = true};
  std::vector<StageTask> tasks = {{.name = "slow", .run = [&](const Taken& taken, const StageSigns&) {
                                     for (int i = 0; i < 9; ++i) {
                                       of_threads.AwaitWaiters(2);  // Join(), and the thread that keeps the lease
                                       fake_.Advance(absl::Milliseconds(100));
                                       of_threads.Advance(absl::Milliseconds(100));
                                     }
                                     of_threads.AwaitWaiters(2);
                                     return dock_->Complete({.partition = kPartition, .lease = taken.lease});
                                   }}};
  StageThreads threads(*dock_, kPartition, std::move(tasks), options);
  EXPECT_EQ(threads.Join(), absl::OkStatus());
  EXPECT_EQ(dock_->GetConsumerStatus(kPartition, "slow")->expired, 0);
  EXPECT_DOUBLE_EQ(timeline_.Take().times.at("slow").working, 0.9);
}

}  // namespace
}  // namespace tdock::trainer
