#include "trainer/stages/external_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

// Another process is to write `y` from `x`.
class LeftToOthers final : public Stage {
 public:
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows&, StageContext&) override { return absl::InternalError("not here"); }
  absl::Status Report(const Rows& written, StepMetrics& metrics) const override {
    for (size_t i = 0; i < written.size(); ++i) metrics.Sum("y/sum", written.Get<float>(i, "y")->front());
    return absl::OkStatus();
  }

 private:
  const ConsumerOptions consumer_{.name = "scores", .reads = {"x"}, .writes = {"y"}};
};

class AwaitStageTest : public testing::Test {
 protected:
  AwaitStageTest() : dock_(MakeLocalDock({.clock = &clock_})) {
    EXPECT_TRUE(dock_->CreatePartition({.name = "train", .growing = true, .group_size = 2}).ok());
    EXPECT_TRUE(dock_->RegisterConsumer("train", stage_.consumer()).ok());
    Batch batch;
    EXPECT_TRUE(batch.Add("x", Column::FromValues<float>({1, 2, 3, 4})).ok());
    EXPECT_TRUE(dock_->Put({.partition = "train", .batch = batch, .groups = {7, 7, 8, 8}}).ok());
  }

  absl::StatusOr<int64_t> Await(const std::function<absl::Status()>& check_stop = [] { return absl::OkStatus(); }) {
    StageContext context{3, metrics_};
    return AwaitStage(*dock_, "train", stage_, context,
                      {.clock = clock_, .timeout = absl::Seconds(10), .check_stop = check_stop});
  }

  // What the other process does once the run waits.
  void Score(int64_t rows, float value) {
    const auto taken = dock_->Take({.partition = "train", .consumer = "scores", .min = rows, .max = rows});
    ASSERT_TRUE(taken.ok()) << taken.status();
    Batch batch;
    ASSERT_TRUE(batch.Add("y", Column::FromValues(std::vector<float>(static_cast<size_t>(rows), value))).ok());
    const std::vector<RowId> ids(taken->rows.ids().begin(), taken->rows.ids().end());
    ASSERT_TRUE(dock_->Fill({.partition = "train", .batch = batch, .rows = ids, .lease = taken->lease}).ok());
  }

  FakeClock clock_;
  std::unique_ptr<Dock> dock_;
  LeftToOthers stage_;
  StepMetrics metrics_;
};

TEST_F(AwaitStageTest, WaitsUntilEveryRowIsWrittenAndReportsWhatIs) {
  std::thread other([this] {
    clock_.AwaitWaiters(1);
    Score(3, 2);
    Score(1, 5);
  });
  const auto rows = Await();
  other.join();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(*rows, 4);
  EXPECT_EQ(metrics_.Values().at("y/sum"), 11);
}

TEST_F(AwaitStageTest, RowsThatTheOtherProcessDropsAreNotWaitedFor) {
  std::thread other([this] {
    clock_.AwaitWaiters(1);
    Score(2, 1);
    EXPECT_EQ(*dock_->Clear({.partition = "train", .groups = {8}}), 2);
  });
  const auto rows = Await();
  other.join();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(*rows, 2);
  EXPECT_EQ(*dock_->Clear({.partition = "train", .everything = true}), 2);
  EXPECT_EQ(*Await(), 0);
}

// Lets the time of a wait pass.
class Passing {
 public:
  explicit Passing(FakeClock& clock)
      : thread_([&clock, this] {
          while (!over_) {
            clock.Advance(absl::Milliseconds(100));
            std::this_thread::yield();
          }
        }) {}
  ~Passing() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

TEST_F(AwaitStageTest, AfterItsTimeItSaysThatNobodyTakesTheRows) {
  Passing time(clock_);
  const absl::Status status = Await().status();
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'scores'", "put y ", "10s", "0 of 4", "No process",
                                                          "consumer 'scores'", "partition 'train'", "take 4 rows"}));
}

TEST_F(AwaitStageTest, AfterItsTimeItSaysHowFarTheOtherProcessIs) {
  Score(3, 1);
  Passing time(clock_);
  const absl::Status status = Await().status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kDeadlineExceeded,
                            {"stage 'scores'", "10s", "3 of 4", "A process", "more time"}));
}

TEST_F(AwaitStageTest, ARunToldToStopNoLongerWaits) {
  Passing time(clock_);
  int asked = 0;
  const absl::Status status =
      Await([&] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("interrupted"); }).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled, {"stage 'scores'", "interrupted"}));
}

TEST_F(AwaitStageTest, ANumberThatIsNotFiniteNamesItsColumnAndRow) {
  Score(2, 1);
  Score(2, std::nanf(""));
  EXPECT_THAT(Await().status(),
              Fails(absl::StatusCode::kInternal, {"stage 'scores'", "nan", "column 'y'", "row 2", "position 0"}));
}

TEST_F(AwaitStageTest, APartitionThatIsGoneIsTheDocksError) {
  ASSERT_TRUE(dock_->DropPartition("train").ok());
  EXPECT_EQ(Await().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tdock::trainer
