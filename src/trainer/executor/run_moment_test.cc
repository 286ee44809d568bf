#include "trainer/executor/run_moment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "nlohmann/json.hpp"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Json = nlohmann::json;

class RunMomentTest : public testing::Test {
 protected:
  void SetUp() override {
    PartitionOptions options{.name = "train", .retain_for = {"actor"}};
    options.columns = {{"prompt", ColumnType::Dense(DType::kI32)}, {"answer", ColumnType::Dense(DType::kI32)}};
    ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
    ASSERT_EQ(dock_->RegisterConsumer("train", {.name = "rollout", .reads = {"prompt"}, .writes = {"answer"}}),
              absl::OkStatus());
    ASSERT_EQ(dock_->RegisterConsumer("train", {.name = "actor", .reads = {"answer"}}), absl::OkStatus());
    PutRequest put{.partition = "train"};
    ASSERT_EQ(put.batch.Add("prompt", Column::FromValues(std::vector<int32_t>{1, 2, 3})), absl::OkStatus());
    ASSERT_TRUE(dock_->Put(put).ok());
  }
  RunExplanation Explain() { return ExplainRun(moment_, timeline_, *dock_, stages_, clock_); }

  FakeClock clock_;
  std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_});
  Timeline timeline_{clock_};
  RunMoment moment_{clock_};
  std::vector<ExplainedStage> stages_ = {{.name = "rollout", .partition = "train"},
                                         {.name = "actor", .partition = "train"}};
};

TEST_F(RunMomentTest, TellsWhoWorksOnWhatAndWhoWaitsForWhom) {
  moment_.Enter(3, "training");
  ASSERT_TRUE(dock_->Take({.partition = "train", .consumer = "rollout", .min = 2, .max = 2}).ok());
  timeline_.Work("rollout", 2, "2 rows between 0 and 1");
  timeline_.Wait("actor");
  clock_.Advance(absl::Seconds(10));
  timeline_.Progress("rollout");
  timeline_.Take();  // as at the end of a step, while they go on
  clock_.Advance(absl::Seconds(2));
  RunExplanation run = Explain();
  run.recipe = "grpo";
  const std::string text = ToText(run);
  EXPECT_THAT(text, HasSubstr("GRPO, step 3: training, for 12.0 s\n"));
  EXPECT_THAT(text, ContainsRegex("rollout: [^\n]* worked on 2 rows between 0 and 1 for 12\\.0 s[^\n]* 2\\.0 s ago\n"
                                  " +rows: 0 waiting, 1 ready, 2 leased, 0 done\n"));
  EXPECT_THAT(text, ContainsRegex("actor: [^\n]* waited [^\n]* 12\\.0 s\n +rows: 3 waiting"));
  EXPECT_THAT(text, Mentions({"lack 'answer'", "'rollout'", "under lease"}));
}

TEST_F(RunMomentTest, TheJsonSaysTheSame) {
  moment_.Enter(3, "validating");
  moment_.NoteStep({{"perf/throughput", 120.5}, {"async/staleness/mean", 1.5}, {"async/staleness/max", 4}});
  timeline_.Work("validation", 0);
  clock_.Advance(absl::Seconds(1));
  const Json run = Json::parse(ToJson(Explain()));
  EXPECT_EQ(run["step"], 3);
  EXPECT_EQ(run["phase"], "validating");
  EXPECT_EQ(run["phase_seconds"], 1.0);
  EXPECT_EQ(run["tokens_per_second"], 120.5);
  EXPECT_EQ(run["staleness"], Json::parse(R"({"mean":1.5,"max":4.0})"));
  EXPECT_EQ(run["rows"], 3);
  ASSERT_EQ(run["stages"].size(), 3u);
  EXPECT_EQ(run["stages"][0]["does"], "nothing");
  EXPECT_EQ(run["stages"][0]["counts"]["ready"], 3);
  EXPECT_EQ(run["stages"][1]["counts"]["waiting"], 3);
  EXPECT_EQ(run["stages"][2]["name"], "validation");
  EXPECT_EQ(run["stages"][2]["does"], "works");
  EXPECT_TRUE(run["stages"][2]["counts"].is_null());
}

TEST_F(RunMomentTest, WhatTheDockRefusesIsSaid) {
  ASSERT_EQ(dock_->DropPartition("train"), absl::OkStatus());
  const RunExplanation run = Explain();
  EXPECT_THAT(run.dock_error, HasSubstr("train"));
  EXPECT_FALSE(run.stages[0].counts.has_value());
  EXPECT_THAT(ToText(run), HasSubstr("the dock: "));
}

}  // namespace
}  // namespace tdock::trainer
