#include "trainer/stages/stage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>

#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

// Reads column `x` and writes `y` by a function of the test's.
class FunctionStage final : public Stage {
 public:
  using Function = std::function<absl::StatusOr<std::vector<float>>(const Rows&)>;
  FunctionStage(std::string name, Function function)
      : consumer_{.name = std::move(name), .reads = {"x"}, .writes = {"y"}}, function_(std::move(function)) {}

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
  StageRunnerTest() : dock_(MakeLocalDock()), runner_(*dock_, "train") {
    EXPECT_TRUE(dock_->CreatePartition({.name = "train", .growing = true}).ok());
    Batch batch;
    EXPECT_TRUE(batch.Add("x", Column::FromValues<float>({1, 2, 3, 4})).ok());
    EXPECT_TRUE(dock_->Put({.partition = "train", .batch = batch}).ok());
  }

  absl::Status Run(Stage& stage, int64_t units) {
    if (absl::Status status = runner_.Add(stage); !status.ok()) return status;
    StageContext context{3, metrics_};
    return runner_.Run(stage, units, context);
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

TEST_F(StageRunnerTest, AnExceptionNamesTheStageAndItsRowsAndGivesThemBack) {
  FunctionStage broken("broken", [](const Rows&) -> std::vector<float> { throw std::runtime_error("no such planet"); });
  const absl::Status status = Run(broken, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "stage 'broken', 4 rows between 0 and 3: no such planet");
  EXPECT_EQ(dock_->GetConsumerStatus("train", "broken")->ready, 4);
}

TEST_F(StageRunnerTest, ANumberThatIsNotFiniteNamesItsColumnAndRow) {
  FunctionStage poisoned("poisoned", [](const Rows&) { return std::vector<float>{1, 2, std::nanf(""), 4}; });
  const absl::Status status = Run(poisoned, 4);
  EXPECT_EQ(status.message(),
            "stage 'poisoned', 4 rows between 0 and 3: wrote nan into column 'y' of row 2, at position 0");
}

TEST_F(StageRunnerTest, TooFewRowsOutNamesBothCounts) {
  FunctionStage lazy("lazy", [](const Rows&) { return std::vector<float>{1}; });
  EXPECT_EQ(Run(lazy, 4).message(), "stage 'lazy', 4 rows between 0 and 3: gave 1 rows for the 4 that it took");
}

TEST_F(StageRunnerTest, RowsThatCannotComeAreAnErrorAtOnce) {
  FunctionStage hungry("hungry", [](const Rows&) { return std::vector<float>(5); });
  const absl::Status status = Run(hungry, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("stage 'hungry'"), absl::string_view::npos) << status;
}

TEST(StepMetrics, WeighsMeansAndKeepsExtremes) {
  StepMetrics metrics;
  metrics.Mean("loss", 1.0, 3.0);
  metrics.Mean("loss", 5.0, 1.0);
  metrics.Sum("steps", 1);
  metrics.Sum("steps", 1);
  metrics.Distribution("score", std::vector<float>{1, 0, 0.5});
  metrics.Distribution("score", std::vector<float>{0.5});
  metrics.Distribution("nothing", {});
  const std::map<std::string, double> expected = {
      {"loss", 2.0}, {"steps", 2.0}, {"score/mean", 0.5}, {"score/max", 1.0}, {"score/min", 0.0}};
  EXPECT_EQ(metrics.Values(), expected);
}

}  // namespace
}  // namespace tdock::trainer
