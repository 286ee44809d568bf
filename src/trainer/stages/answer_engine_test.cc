// The rollout with an engine that is elsewhere: answers come late, in any order, of the weights that the engine has.
#include "trainer/stages/answer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "tdock/local_dock.h"
#include "text/char_tokenizer.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Answers as an engine of this process does; but gives what has ended last first, one at a time, and says that other
// weights made it.
class EngineElsewhere final : public AnswerEngine {
 public:
  EngineElsewhere(const model::Decoder& decoder, const engine::EngineOptions& options)
      : inside_(MakeLocalEngine(decoder, options)) {}

  absl::Status Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool in_flight,
                     const std::function<absl::Status()>& check_stop) override {
    if (!serve.ok()) return serve;
    served.push_back(version);
    return inside_->Serve(std::move(decoder), version, in_flight, check_stop);
  }
  absl::StatusOr<engine::RequestId> Add(engine::Request request) override {
    open_ += request.prompt.samples;
    return inside_->Add(std::move(request));
  }
  bool HasWork() const override { return open_ > 0; }
  absl::StatusOr<std::vector<engine::Answer>> Step() override {
    while (inside_->HasWork()) {
      absl::StatusOr<std::vector<engine::Answer>> ended = inside_->Step();
      if (!ended.ok()) return ended.status();
      for (engine::Answer& answer : *ended) kept_.push_back(std::move(answer));
    }
    std::vector<engine::Answer> last;
    if (kept_.empty()) return last;
    last.push_back(std::move(kept_.back()));
    kept_.pop_back();
    --open_;
    if (made_by.has_value()) {
      for (engine::WeightsSpan& span : last.front().completion.weights) span.version = *made_by;
    }
    if (std::cmp_equal(open_, fails_at)) last.front().status = absl::FailedPreconditionError("the server refuses it");
    return last;
  }
  absl::Status Abort(engine::RequestId request) override {
    aborted.push_back(request);
    return inside_->Abort(request);
  }
  int64_t open() const override { return open_; }
  absl::Duration computing() const override { return inside_->computing(); }
  void Report(StepMetrics& metrics) override { metrics.Sum("rollout/of_its_own", 1); }

  std::vector<int64_t> served = {};
  std::vector<engine::RequestId> aborted = {};
  std::optional<int64_t> made_by = {};
  absl::Status serve = absl::OkStatus();
  int64_t fails_at = -1;  // the answer that is given when so many are left

 private:
  const std::unique_ptr<AnswerEngine> inside_;
  std::vector<engine::Answer> kept_;
  int64_t open_ = 0;
};

class AnswerEngineTest : public testing::Test {
 protected:
  static constexpr int64_t kGroups = 3, kRows = 2 * kGroups;

  AnswerEngineTest()
      : policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, false), 3, at::kCPU), 5} {
    policy_.decoder.LimitVocabulary(tokenizer_->vocab_size());
    policy_.decoder.SetBatchInvariant(true);
  }

  static std::unique_ptr<Dock> Filled() {
    std::unique_ptr<Dock> dock = MakeLocalDock();
    const std::vector<ColumnSpec> columns =
        ColumnsNamed({kPrompt, kResponses, kResponseMask, kResponseText, kFinished, kRolloutLogProbs});
    EXPECT_EQ(dock->CreatePartition({.name = "train", .columns = columns, .group_size = 2}), absl::OkStatus());
    std::vector<std::vector<int32_t>> prompts;
    std::vector<GroupId> groups;
    for (int32_t row = 0; row < kRows; ++row) {
      prompts.emplace_back(3, 1 + row / 2);
      groups.push_back(static_cast<GroupId>(row / 2));
    }
    Batch batch;
    EXPECT_EQ(batch.Add(kPrompt, Column::FromRows(prompts)), absl::OkStatus());
    EXPECT_TRUE(dock->Put({.partition = "train", .batch = batch, .groups = groups}).ok());
    return dock;
  }

  std::unique_ptr<EngineElsewhere> Elsewhere() {
    auto engine = std::make_unique<EngineElsewhere>(policy_.decoder, Options());
    engine_ = engine.get();
    return engine;
  }

  static engine::EngineOptions Options() {
    engine::EngineOptions options;
    options.end_tokens = {4, 5, 6};
    return options;
  }

  struct Written {
    std::vector<std::vector<int32_t>> responses = {};
    std::vector<std::vector<float>> log_probs = {};
    std::vector<int64_t> versions = {};
  };
  absl::StatusOr<Written> RunStage(std::unique_ptr<AnswerEngine> engine, RolloutPuts puts = {}) {
    const std::unique_ptr<Dock> dock = Filled();
    StageRunner runner(*dock, "train");
    const auto stage = MakeRolloutStage(policy_, *tokenizer_, std::move(engine),
                                        {.temperature = 1.3, .max_new_tokens = 9, .seed = 8}, {}, puts);
    EXPECT_EQ(runner.Add(*stage), absl::OkStatus());
    StageContext context{.step = 1, .metrics = metrics_, .check_stop = check_stop_};
    const auto run = runner.Run(*stage, kGroups, context);
    if (engine_ != nullptr) {
      left_ = engine_->open();
      served_ = engine_->served;
      aborted_ = engine_->aborted.size();
    }
    if (!run.ok()) return run.status();
    const auto rows =
        dock->Fetch({.partition = "train", .rows = {0, 1, 2, 3, 4, 5}, .columns = {kResponses, kRolloutLogProbs}});
    if (!rows.ok()) return rows.status();
    Written written;
    for (size_t row = 0; row < kRows; ++row) {
      const auto tokens = *rows->Get<int32_t>(row, kResponses);
      const auto log_probs = *rows->Get<float>(row, kRolloutLogProbs);
      written.responses.emplace_back(tokens.begin(), tokens.end());
      written.log_probs.emplace_back(log_probs.begin(), log_probs.end());
      written.versions.push_back(rows->cell(row, 0).weights_version);
    }
    return written;
  }

  const std::unique_ptr<text::CharTokenizer> tokenizer_ = *text::CharTokenizer::Create("abcdefgh");
  Policy policy_;
  EngineElsewhere* engine_ = nullptr;
  StepMetrics metrics_;
  std::function<absl::Status()> check_stop_ = [] { return absl::OkStatus(); };
  int64_t left_ = -1;
  std::vector<int64_t> served_;
  size_t aborted_ = 0;
};

TEST_F(AnswerEngineTest, AnswersInAnyOrderAreThoseOfAnEngineOfThisProcess) {
  const auto expected = RunStage(MakeLocalEngine(policy_.decoder, Options()));
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const absl::Duration interval : {absl::InfiniteDuration(), absl::ZeroDuration()}) {
    const auto written = RunStage(Elsewhere(), {.interval = interval});
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->responses, expected->responses);
    EXPECT_EQ(written->log_probs, expected->log_probs);
    EXPECT_THAT(written->versions, testing::Each(5));
    EXPECT_THAT(served_, testing::ElementsAre(5)) << "the policy's version";
    EXPECT_EQ(left_, 0);
  }
  EXPECT_EQ(metrics_.Values().at("rollout/of_its_own"), 2);
}

TEST_F(AnswerEngineTest, RowsHaveTheVersionOfTheWeightsThatMadeThem) {
  for (const absl::Duration interval : {absl::InfiniteDuration(), absl::ZeroDuration()}) {
    auto engine = Elsewhere();
    engine->made_by = 2;
    const auto written = RunStage(std::move(engine), {.interval = interval});
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_THAT(written->versions, testing::Each(2));
  }
}

TEST_F(AnswerEngineTest, WhatTheWeightFeedHasIsServedAndItsVersionWritten) {
  WeightFeed feed;
  feed.Publish(Unowned(policy_.decoder), 7);
  const auto written = RunStage(Elsewhere(), {.weights = &feed});
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_THAT(written->versions, testing::Each(7));
  EXPECT_THAT(served_, testing::ElementsAre(7));
}

TEST_F(AnswerEngineTest, AnErrorOrAStopLeavesNothingOpen) {
  WeightFeed feed;
  feed.Publish(Unowned(policy_.decoder), 7);
  for (const WeightFeed* weights : {static_cast<const WeightFeed*>(nullptr), static_cast<const WeightFeed*>(&feed)}) {
    auto refusing = Elsewhere();
    refusing->fails_at = kRows - 1;
    EXPECT_THAT(RunStage(std::move(refusing), {.weights = weights}).status(),
                Fails(absl::StatusCode::kFailedPrecondition, {"stage 'rollout'", "prompt ", "the server refuses it"}));
    EXPECT_EQ(left_, 0);
    EXPECT_GE(aborted_, 2u) << "requests of other prompts";

    check_stop_ = [] { return absl::CancelledError("interrupted"); };
    EXPECT_THAT(RunStage(Elsewhere(), {.weights = weights}).status(),
                Fails(absl::StatusCode::kCancelled, {"interrupted"}));
    EXPECT_EQ(left_, 0);
    check_stop_ = [] { return absl::OkStatus(); };

    auto unreachable = Elsewhere();
    unreachable->serve = absl::UnavailableError("nobody answers");
    EXPECT_THAT(RunStage(std::move(unreachable), {.weights = weights}).status(),
                Fails(absl::StatusCode::kUnavailable, {"stage 'rollout'", "nobody answers"}));
  }
}

}  // namespace
}  // namespace tdock::trainer
