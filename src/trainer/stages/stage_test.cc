#include "trainer/stages/stage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>

#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

// Reads column `x` and writes `y` by a function of the test's.
class FunctionStage final : public Stage {
 public:
  using Function = std::function<absl::StatusOr<std::vector<float>>(const Rows&)>;
  FunctionStage(std::string name, Function function, absl::Duration lease = absl::Minutes(10))
      : consumer_{.name = std::move(name), .reads = {"x"}, .writes = {"y"}, .lease_duration = lease},
        function_(std::move(function)) {}

  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    const auto values = function_(rows);
    if (!values.ok()) return values.status();
    StageOutput output{.columns = {}, .weights_version = 7};
    if (absl::Status status = output.columns.Add("y", Column::FromValues(*values)); !status.ok()) return status;
    return output;
  }

 private:
  const ConsumerOptions consumer_;
  const Function function_;
};

class StageRunnerTest : public testing::Test {
 protected:
  static std::unique_ptr<Dock> FourRows() {
    std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(dock->CreatePartition({.name = "train", .growing = true}).ok());
    Batch batch;
    EXPECT_TRUE(batch.Add("x", Column::FromValues<float>({1, 2, 3, 4})).ok());
    EXPECT_TRUE(dock->Put({.partition = "train", .batch = batch}).ok());
    return dock;
  }
  StageRunnerTest() : dock_(FourRows()), runner_(*dock_, "train") {}

  absl::Status Run(Stage& stage, int64_t units) { return Run(runner_, stage, units); }
  absl::Status Run(StageRunner& runner, Stage& stage, int64_t units) {
    if (absl::Status status = runner.Add(stage); !status.ok()) return status;
    StageContext context{3, metrics_};
    return runner.Run(stage, units, context).status();
  }

  std::unique_ptr<Dock> dock_;
  StageRunner runner_;
  StepMetrics metrics_;
};

TEST_F(StageRunnerTest, PutsWhatTheStageWritesWithItsVersion) {
  FunctionStage doubles("doubles", [](const Rows& rows) {
    std::vector<float> y;
    for (size_t i = 0; i < rows.size(); ++i) y.push_back(2 * rows.Get<float>(i, "x")->front());
    return y;
  });
  ASSERT_TRUE(Run(doubles, 4).ok());
  const auto rows = dock_->Fetch({.partition = "train", .rows = {2}, .columns = {"y"}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->Get<float>(0, "y")->front(), 6.0f);
  EXPECT_EQ(*rows->WeightsVersion(0, "y"), 7);
  EXPECT_EQ(dock_->GetConsumerStatus("train", "doubles")->done, 4);
}

TEST_F(StageRunnerTest, AStageMayTakeLongerThanItsLease) {
  // A loaded machine may renew a short lease too late: the leases become longer until one is kept.
  absl::Status status;
  for (absl::Duration lease = absl::Milliseconds(300); lease < kPatience; lease *= 4) {
    const std::unique_ptr<Dock> dock = FourRows();
    StageRunner runner(*dock, "train");
    FunctionStage slow(
        "slow",
        [lease](const Rows& rows) {
          absl::SleepFor(2 * lease);
          return std::vector<float>(rows.size());
        },
        lease);
    status = Run(runner, slow, 4);
    if (status.ok()) break;
  }
  EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(StageRunnerTest, AnExceptionNamesTheStageAndItsRowsAndGivesThemBack) {
  FunctionStage broken("broken", [](const Rows&) -> std::vector<float> { throw std::runtime_error("no such planet"); });
  const absl::Status status = Run(broken, 4);
  EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, {"stage 'broken'", "4 rows", "0 and 3", "no such planet"}));
  EXPECT_EQ(dock_->GetConsumerStatus("train", "broken")->ready, 4);
}

TEST_F(StageRunnerTest, ANumberThatIsNotFiniteNamesItsColumnAndRow) {
  FunctionStage poisoned("poisoned", [](const Rows&) { return std::vector<float>{1, 2, std::nanf(""), 4}; });
  EXPECT_THAT(Run(poisoned, 4),
              Fails(absl::StatusCode::kInternal, {"stage 'poisoned'", "nan", "column 'y'", "row 2", "position 0"}));
}

TEST_F(StageRunnerTest, TooFewRowsOutNamesBothCounts) {
  FunctionStage lazy("lazy", [](const Rows&) { return std::vector<float>{1}; });
  EXPECT_THAT(Run(lazy, 4), Fails(absl::StatusCode::kInternal, {"stage 'lazy'", "0 and 3", "1 rows", "the 4"}));
}

TEST_F(StageRunnerTest, RowsThatCannotComeAreAnErrorAtOnce) {
  FunctionStage hungry("hungry", [](const Rows&) { return std::vector<float>(5); });
  EXPECT_THAT(Run(hungry, 5), Fails(absl::StatusCode::kFailedPrecondition, {"stage 'hungry'"}));
}

// ---- Stages that drop and requeue.

// Reads groups, and drops and requeues as the test says.
class SortingStage final : public Stage {
 public:
  using Function = std::function<void(const Rows&, StageOutput&)>;
  explicit SortingStage(Function function) : function_(std::move(function)) {}
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    StageOutput output;
    std::vector<float> values(rows.size(), 1);
    for (size_t i = 0; i < rows.size(); ++i) values[i] = 10 * rows.Get<float>(i, "x")->front();
    if (absl::Status status = output.columns.Add("y", Column::FromValues(values)); !status.ok()) return status;
    function_(rows, output);
    return output;
  }

 private:
  const ConsumerOptions consumer_{.name = "sorts", .reads = {"x"}, .writes = {"y"}, .unit = Unit::kGroup};
  const Function function_;
};

class SortingStageTest : public testing::Test {
 protected:
  SortingStageTest() : dock_(MakeLocalDock()), runner_(*dock_, "train") {
    EXPECT_TRUE(dock_->CreatePartition({.name = "train", .growing = true, .group_size = 2}).ok());
    Batch batch;
    EXPECT_TRUE(batch.Add("x", Column::FromValues<float>({1, 2, 3, 4, 5, 6})).ok());
    EXPECT_TRUE(dock_->Put({.partition = "train", .batch = batch, .groups = {7, 7, 8, 8, 9, 9}}).ok());
  }

  absl::StatusOr<int64_t> Run(SortingStage::Function function) {
    SortingStage stage(std::move(function));
    if (absl::Status status = runner_.Add(stage); !status.ok()) return status;
    StageContext context{1, metrics_};
    return runner_.Run(stage, 3, context);
  }
  int64_t Done() { return dock_->GetConsumerStatus("train", "sorts")->done; }

  std::unique_ptr<Dock> dock_;
  StageRunner runner_;
  StepMetrics metrics_;
};

TEST_F(SortingStageTest, DroppedGroupsAreDoneForEverybodyAndTheOthersArePut) {
  const auto dropped = Run([](const Rows&, StageOutput& output) { output.dropped = {8}; });
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(*dropped, 2);
  const auto rows = dock_->Fetch({.partition = "train", .rows = {1, 4}, .columns = {"y"}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->Get<float>(0, "y")->front(), 20);
  EXPECT_EQ(rows->Get<float>(1, "y")->front(), 50);
  EXPECT_TRUE(dock_->RegisterConsumer("train", {.name = "next", .reads = {"x"}, .unit = Unit::kGroup}).ok());
  EXPECT_EQ(dock_->Take({.partition = "train", .consumer = "next", .max = 9})->rows.size(), 4u);
}

TEST_F(SortingStageTest, RequeuedGroupsAreGivenToTheStageOnceMore) {
  int round = 0;
  std::vector<size_t> sizes;
  const auto dropped = Run([&](const Rows& rows, StageOutput& output) {
    sizes.push_back(rows.size());
    if (++round < 3) output.requeued = {9};
  });
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(*dropped, 0);
  EXPECT_EQ(sizes, (std::vector<size_t>{6, 2, 2}));
  EXPECT_EQ(Done(), 6);
}

TEST_F(SortingStageTest, AStageThatAlwaysRequeuesIsNamed) {
  const absl::Status status = Run([](const Rows&, StageOutput& output) { output.requeued = {7, 9}; }).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, {"stage 'sorts'", "gave back 2 ", "5 times", "4 times"}));
}

TEST_F(SortingStageTest, AGroupThatItWasNotGivenIsNamed) {
  const absl::Status status = Run([](const Rows&, StageOutput& output) { output.dropped = {3}; }).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, {"stage 'sorts'", "6 rows", "0 and 5", "group 3"}));
}

}  // namespace
}  // namespace tdock::trainer
