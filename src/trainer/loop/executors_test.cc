#include "trainer/loop/executors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/status.h"
#include "trainer/run_log/progress.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kRows = 6;

// Doubles numbers, and counts them. It puts two of the rows early, and then fails as often as it is told to.
class Doubling final : public Stage {
 public:
  const ConsumerOptions& consumer() const override { return consumer_; }
  Together together() const override { return Together::kNothing; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    size_t begin = 0;
    if (context.publish != nullptr && rows.size() == kRows) {
      TDOCK_ASSIGN_OR_RETURN(Batch early, Doubled(rows, 0, 2, context.metrics));
      TDOCK_RETURN_IF_ERROR(context.publish(std::vector<size_t>{0, 1}, std::move(early), kNoWeightsVersion));
      begin = 2;
    }
    StageOutput output;
    TDOCK_ASSIGN_OR_RETURN(output.columns, Doubled(rows, begin, rows.size(), context.metrics));
    if (failures-- > 0) return absl::UnavailableError("not this time");
    return output;
  }

  int failures = 0;

 private:
  static absl::StatusOr<Batch> Doubled(const Rows& rows, size_t begin, size_t end, StepMetrics& metrics) {
    std::vector<float> doubled;
    for (size_t i = begin; i < end; ++i) {
      const float value = rows.Get<float>(i, "number")->front();
      doubled.push_back(2 * value);
      metrics.Sum("doubled", 1);
      metrics.Max("greatest", value);
    }
    Batch batch;
    TDOCK_RETURN_IF_ERROR(batch.Add("double", Column::FromValues(doubled)));
    return batch;
  }

  ConsumerOptions consumer_ = {.name = "doubling", .reads = {"number"}, .writes = {"double"}};
};

// A step of one stage, on a thread of its own; what its metrics say.
class StageOnAThread : public testing::Test {
 protected:
  StageOnAThread() {
    EXPECT_EQ(partition_->Create(
                  {.columns = {{"number", ColumnType::Dense(DType::kF32)}, {"double", ColumnType::Dense(DType::kF32)}},
                   .retain_for = {"doubling"}}),
              absl::OkStatus());
    EXPECT_EQ(runner_.Add(stage()), absl::OkStatus());
    PutRequest put{.partition = partition_->name()};
    EXPECT_EQ(put.batch.Add("number", Column::FromValues(std::vector<float>{1, 2, 3, 4, 5, 6})), absl::OkStatus());
    EXPECT_TRUE(partition_->dock().Put(put).ok());
  }

  Doubling& stage() { return static_cast<Doubling&>(*stages_[0]); }

  std::map<std::string, double> Run() {
    StepMetrics metrics;
    StageContext context{.step = 1, .metrics = metrics};
    EXPECT_EQ(RunTogether(run_, 0, context, [](Stage&) { return absl::OkStatus(); }), absl::OkStatus());
    return metrics.Values();
  }

  Progress progress_{{.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real()};
  const RunContext context_{.env = Env::Real(), .clock = Clock::Real(), .progress = progress_};
  const DockSection dock_section_;
  const ExecutorSection section_;
  const std::unique_ptr<RunPartition> partition_ = *RunPartition::Open(dock_section_, context_);
  StageRunner runner_{partition_->dock(), partition_->name()};
  PhaseMeter meter_{Clock::Real(), Env::Real(), at::kCPU};
  Timeline timeline_{Clock::Real()};
  StageWatch watch_{{.clock = Clock::Real()}};
  const std::vector<std::unique_ptr<Stage>> stages_ = [] {
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(std::make_unique<Doubling>());
    return stages;
  }();
  const StageRun run_{.partition = *partition_,
                      .runner = runner_,
                      .stages = stages_,
                      .group_size = 1,
                      .section = section_,
                      .meter = meter_,
                      .timeline = timeline_,
                      .watch = watch_,
                      .context = context_};
};

TEST_F(StageOnAThread, CountsEachRowOnce) {
  const auto metrics = Run();
  EXPECT_EQ(metrics.at("doubled"), kRows);
  EXPECT_EQ(metrics.at("greatest"), 6);
}

TEST_F(StageOnAThread, ThatIsTriedAgainCountsWhatItPutBeforeAndWhatItPutsNowOnce) {
  stage().failures = 2;
  const auto metrics = Run();
  EXPECT_EQ(metrics.at("doubled"), kRows);
  EXPECT_EQ(metrics.at("greatest"), 6);
}

}  // namespace
}  // namespace tdock::trainer
