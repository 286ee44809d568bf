// Scores reach the dock as they come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Scores its answers by their lengths, up to one that it waits at until it is told to stop.
class StandingReward final : public reward::Reward {
 public:
  explicit StandingReward(size_t stands_at) : stands_at_(stands_at) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer>) override {
    return absl::UnimplementedError("one by one only");
  }
  absl::Status ScoreEach(std::span<const reward::Answer> answers, const StopCheck& check_stop,
                         const reward::ScoreSink& sink) override {
    for (size_t i = 0; i < answers.size(); ++i) {
      while (answers[i].response.size() == stands_at_) {
        if (absl::Status stop = check_stop(); !stop.ok()) return stop;
        std::this_thread::yield();
      }
      columns = answers[i].columns;
      messages = answers[i].messages;
      reward::AnswerScore score;
      score.total = static_cast<float>(answers[i].response.size());
      score.parts.push_back({.name = "length", .score = score.total, .seconds = 2.0});
      sink(i, std::move(score));
    }
    return absl::OkStatus();
  }

  std::vector<std::pair<std::string, std::string>> columns;
  std::string messages;

 private:
  const size_t stands_at_;
};

// Scores its answers by their lengths, calls `between`, and then scores those of certain lengths, which it leaves out.
class FailingReward final : public reward::Reward {
 public:
  explicit FailingReward(
      std::set<size_t> failing, std::function<void()> between = [] {})
      : failing_(std::move(failing)), between_(std::move(between)) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer>) override {
    return absl::UnimplementedError("one by one only");
  }
  absl::Status ScoreEach(std::span<const reward::Answer> answers, const StopCheck&,
                         const reward::ScoreSink& sink) override {
    for (const bool left_out : {false, true}) {
      for (size_t i = 0; i < answers.size(); ++i) {
        const size_t length = answers[i].response.size();
        if (failing_.contains(length) != left_out) continue;
        reward::AnswerScore score{.total = static_cast<float>(length), .left_out = left_out};
        score.parts.push_back({.name = "length", .failed = left_out, .seconds = 1.0});
        sink(i, std::move(score));
      }
      if (!left_out) between_();
    }
    return absl::OkStatus();
  }

 private:
  const std::set<size_t> failing_;
  const std::function<void()> between_;
};

class RewardStageTest : public testing::Test {
 protected:
  static std::unique_ptr<Dock> FourAnswers() {
    std::unique_ptr<Dock> dock = MakeLocalDock();
    std::vector<ColumnSpec> columns =
        ColumnsNamed({kPromptText, kTruth, kSource, kResponseText, kFinished, kMessages, kRewards});
    columns.push_back({"extra", ColumnType::Bytes()});
    EXPECT_EQ(dock->CreatePartition({.name = "train", .columns = columns, .group_size = 2}), absl::OkStatus());
    Batch batch;
    const std::vector<std::string> same(4, "t");
    for (const char* name : {kPromptText, kTruth, kSource, kMessages, "extra"}) {
      EXPECT_EQ(batch.Add(name, Column::FromStrings(same)), absl::OkStatus());
    }
    EXPECT_EQ(batch.Add(kResponseText, Column::FromStrings(std::vector<std::string>{"", "x", "xx", "xxx"})),
              absl::OkStatus());
    EXPECT_EQ(batch.Add(kFinished, Column::FromValues<uint8_t>({1, 1, 1, 1})), absl::OkStatus());
    EXPECT_TRUE(dock->Put({.partition = "train", .batch = batch, .groups = {0, 0, 1, 1}}).ok());
    return dock;
  }
  RewardStageTest() : dock_(FourAnswers()), runner_(*dock_, "train") {}

  // For a StandingReward, which does not ask before it stands.
  static absl::Status Stop() { return absl::CancelledError("interrupted"); }

  static int64_t WrittenTo(Dock& dock) { return dock.GetConsumerStatus("train", "reward")->completed; }
  int64_t Written() { return WrittenTo(*dock_); }

  std::unique_ptr<Dock> dock_;
  StageRunner runner_;
  StepMetrics metrics_;
};

TEST_F(RewardStageTest, WhatIsScoredStaysWhenTheStageIsStoppedAndTheRestIsDoneLater) {
  StandingReward stands(2);
  const auto stage = MakeRewardStage(stands);
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  context.check_stop = Stop;
  EXPECT_THAT(runner_.Run(*stage, 4, context).status(),
              Fails(absl::StatusCode::kCancelled, {"stage 'reward'", "interrupted"}));
  EXPECT_EQ(context.published, 2);
  EXPECT_EQ(Written(), 2);

  StandingReward goes_on(100);
  const auto rest = MakeRewardStage(goes_on);
  StageContext later{.step = 1, .metrics = metrics_};
  EXPECT_EQ(*runner_.Run(*rest, 2, later), 0);
  EXPECT_EQ(Written(), 4);
  const Rows rows = *dock_->Fetch({.partition = "train", .rows = {0, 1, 2, 3}, .columns = {kRewards}});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ((*rows.Get<float>(i, kRewards))[0], static_cast<float>(i));
  const auto values = metrics_.Values();
  EXPECT_EQ(values.at("critic/score/mean"), 1.5);
  EXPECT_EQ(values.at("reward/length/mean"), 1.5);
  EXPECT_NEAR(values.at("reward/length/std"), 1.118, 1e-3);
  EXPECT_EQ(values.at("reward/length/seconds"), 2);
  EXPECT_EQ(values.at("reward/length/failed"), 0);
}

TEST_F(RewardStageTest, APromptOfWhichASampleHasNoScoreIsLeftOutWithWhatWasPutOfIt) {
  // The third row's neighbour is put before it is known.
  FailingReward fails(/*failing=*/{2}, [this] { EXPECT_TRUE(Eventually([this] { return Written() == 3; })); });
  const auto stage = MakeRewardStage(fails);
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  ASSERT_EQ(dock_->RegisterConsumer("train", {.name = "advantage", .reads = {kRewards}, .unit = Unit::kGroup}),
            absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  EXPECT_EQ(*runner_.Run(*stage, 4, context), 2);
  EXPECT_EQ(context.published, 3);
  const auto taken = dock_->Take({.partition = "train", .consumer = "advantage", .min = 1, .max = 2});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(taken->rows.ids(), testing::ElementsAre(0, 1));
  const auto values = metrics_.Values();
  EXPECT_EQ(values.at("reward/length/failed"), 0.25);
  EXPECT_EQ(values.at("critic/score/mean"), (0 + 1 + 3) / 3.0);
}

TEST_F(RewardStageTest, AfterAStopThePromptIsLeftOutWithTheRowsThatWereScoredBeforeIt) {
  StandingReward stands(3);
  const auto stage = MakeRewardStage(stands);
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  context.check_stop = Stop;
  EXPECT_FALSE(runner_.Run(*stage, 4, context).ok());
  FailingReward fails(/*failing=*/{3});
  const auto rest = MakeRewardStage(fails);
  StageContext later{.step = 1, .metrics = metrics_, .published = 3, .whole_step = false};
  EXPECT_EQ(*runner_.Run(*rest, 1, later), 2);
}

TEST_F(RewardStageTest, AStepWithoutAnyPromptIsAnError) {
  FailingReward fails(/*failing=*/{1, 2});
  const auto stage = MakeRewardStage(fails);
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  EXPECT_THAT(runner_.Run(*stage, 4, context).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"2 prompts", "reward.on_error=drop"}));
}

TEST_F(RewardStageTest, ScoresThatFollowOneAnotherShortlyAreOnePut) {
  // On a loaded machine, they need several attempts to follow shortly.
  EXPECT_TRUE(Eventually([this] {
    const std::unique_ptr<Dock> dock = FourAnswers();
    StageRunner runner(*dock, "train");
    StandingReward reward(100);
    const auto stage = MakeRewardStage(reward, {"extra", kMessages});
    EXPECT_EQ(runner.Add(*stage), absl::OkStatus());
    StageContext context{.step = 1, .metrics = metrics_};
    EXPECT_EQ(*runner.Run(*stage, 4, context), 0);
    EXPECT_EQ(WrittenTo(*dock), 4);
    EXPECT_THAT(reward.columns, testing::ElementsAre(testing::Pair("extra", "t")));
    EXPECT_EQ(reward.messages, "t");
    return context.published == 0;
  }));
}

}  // namespace
}  // namespace tdock::trainer
