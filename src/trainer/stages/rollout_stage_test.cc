// Responses reach the dock as they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "tdock/local_dock.h"
#include "text/char_tokenizer.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

class RolloutStageTest : public testing::Test {
 protected:
  static constexpr int64_t kGroups = 4, kRows = 3 * kGroups;

  RolloutStageTest()
      : policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, false), 3, at::kCPU), 5} {
    policy_.decoder.LimitVocabulary(tokenizer_->vocab_size());
    policy_.decoder.SetBatchInvariant(true);
    Fill(*dock_);
  }

  static void Fill(Dock& dock) {
    const std::vector<ColumnSpec> columns =
        ColumnsNamed({kPrompt, kResponses, kResponseMask, kResponseText, kFinished, kRolloutLogProbs});
    ASSERT_EQ(dock.CreatePartition({.name = "train", .columns = columns, .group_size = 3}), absl::OkStatus());
    std::vector<std::vector<int32_t>> prompts;
    std::vector<GroupId> groups;
    for (int64_t row = 0; row < kRows; ++row) {
      prompts.emplace_back(static_cast<size_t>(1 + row / 3), static_cast<int32_t>(1 + row / 3));
      groups.push_back(static_cast<GroupId>(row / 3));
    }
    Batch batch;
    ASSERT_EQ(batch.Add(kPrompt, Column::FromRows(prompts)), absl::OkStatus());
    ASSERT_TRUE(dock.Put({.partition = "train", .batch = batch, .groups = groups}).ok());
  }

  std::unique_ptr<Stage> Make(absl::Duration between_puts, const LengthLimits& limits = {}) const {
    engine::EngineOptions options;
    options.max_rows = 3;  // one group after another
    options.end_tokens = {4, 5, 6};
    return MakeRolloutStage(policy_, *tokenizer_, MakeLocalEngine(policy_.decoder, options),
                            {.temperature = 1.3, .max_new_tokens = 9, .seed = 8}, limits, {.interval = between_puts});
  }

  static std::vector<std::vector<int32_t>> Responses(Dock& dock) {
    std::vector<RowId> ids;
    for (RowId row = 0; row < kRows; ++row) ids.push_back(row);
    const auto rows = dock.Fetch({.partition = "train", .rows = ids, .columns = {kResponses, kRolloutLogProbs}});
    EXPECT_TRUE(rows.ok()) << rows.status();
    std::vector<std::vector<int32_t>> responses;
    for (size_t row = 0; row < kRows; ++row) {
      const auto tokens = *rows->Get<int32_t>(row, kResponses);
      EXPECT_EQ(tokens.size(), rows->Get<float>(row, kRolloutLogProbs)->size());
      responses.emplace_back(tokens.begin(), tokens.end());
    }
    return responses;
  }

  // What a stage writes that puts everything at the end.
  std::vector<std::vector<int32_t>> AllAtOnce(StepMetrics& metrics, const LengthLimits& limits = {}) const {
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    Fill(*dock);
    StageRunner runner(*dock, "train");
    const auto stage = Make(absl::InfiniteDuration(), limits);
    EXPECT_EQ(runner.Add(*stage), absl::OkStatus());
    StageContext context{.step = 1, .metrics = metrics};
    const auto run = runner.Run(*stage, kGroups, context);
    EXPECT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(context.published, 0);
    return Responses(*dock);
  }

  int64_t Written() { return dock_->GetConsumerStatus("train", "rollout")->completed; }

  const std::unique_ptr<text::CharTokenizer> tokenizer_ = *text::CharTokenizer::Create("abcdefgh");
  Policy policy_;
  std::unique_ptr<Dock> dock_ = MakeLocalDock();
  StageRunner runner_{*dock_, "train"};
  StepMetrics metrics_;
};

TEST_F(RolloutStageTest, PutsEachGroupAsSoonAsItIsThereAndWritesTheSame) {
  StepMetrics metrics;
  const auto expected = AllAtOnce(metrics);
  const auto stage = Make(absl::ZeroDuration());
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  ASSERT_TRUE(runner_.Run(*stage, kGroups, context).ok());
  EXPECT_EQ(context.published, kRows - 3) << "all but the last group";
  EXPECT_EQ(Responses(*dock_), expected);
  const auto values = metrics_.Values(), all = metrics.Values();
  for (const char* name : {"response_length/mean", "response_length/max", "response_length/clip_ratio",
                           "response_length/finished", "perf/num_generated_tokens"}) {
    EXPECT_NEAR(values.at(name), all.at(name), 1e-6) << name;
  }
}

TEST_F(RolloutStageTest, WhatWasPutStaysWhenItIsStoppedAndTheRestIsTheSameLater) {
  StepMetrics metrics;
  const auto expected = AllAtOnce(metrics);
  const auto stage = Make(absl::ZeroDuration());
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  StageContext context{.step = 1, .metrics = metrics_};
  context.check_stop = [&]() -> absl::Status {
    return context.published >= 3 ? absl::CancelledError("interrupted") : absl::OkStatus();
  };
  EXPECT_THAT(runner_.Run(*stage, kGroups, context).status(),
              Fails(absl::StatusCode::kCancelled, {"stage 'rollout'", "interrupted"}));
  ASSERT_EQ(context.published % 3, 0) << "whole groups";
  const int64_t left = kGroups - context.published / 3;
  EXPECT_GT(left, 0);
  EXPECT_EQ(Written(), context.published);
  StageContext later{.step = 1, .metrics = metrics_, .published = context.published, .whole_step = false};
  EXPECT_EQ(*runner_.Run(*stage, left, later), 0);
  EXPECT_EQ(Responses(*dock_), expected);
}

// A run of the stage with weights that are served, which takes the first group, and then one whenever it asks.
class ServedRolloutTest : public RolloutStageTest {
 protected:
  absl::Status Run(bool in_flight, const std::function<void()>& before_more) {
    engine::EngineOptions options;
    options.max_rows = 4;  // one group, and the first answer of the next
    options.end_tokens = {4, 5, 6};
    const auto stage = MakeRolloutStage(policy_, *tokenizer_, MakeLocalEngine(policy_.decoder, options),
                                        {.temperature = 1.3, .max_new_tokens = 9, .seed = 8}, {},
                                        {.interval = absl::ZeroDuration(),
                                         .weights = &feed_,
                                         .in_flight = in_flight,
                                         .between_takes = absl::ZeroDuration(),
                                         .max_rows = options.max_rows});
    StageRunner runner(*dock_, "train");
    EXPECT_EQ(runner.Add(*stage), absl::OkStatus());
    StageContext context{.step = 1, .metrics = metrics_, .whole_step = false};
    const auto take = [&]() -> absl::StatusOr<std::optional<Taken>> {
      auto taken = dock_->Take({.partition = "train", .consumer = "rollout", .min = 1, .max = 1});
      if (absl::IsDeadlineExceeded(taken.status())) return std::nullopt;
      if (!taken.ok()) return taken.status();
      ++taken_;
      return std::optional<Taken>(*std::move(taken));
    };
    const auto first = take();
    EXPECT_TRUE(first.ok() && first->has_value());
    return runner
        .RunTaken(*stage, **first, context,
                  [&] {
                    before_more();
                    return take();
                  })
        .status();
  }

  void Serve(int64_t version) { feed_.Publish({std::shared_ptr<void>(), &policy_.decoder}, version); }

  WeightFeed feed_;
  StepMetrics metrics_;
  int64_t taken_ = 0;
};

TEST_F(ServedRolloutTest, TakesMoreWhileItAnswersAndWritesTheSame) {
  Serve(5);
  ASSERT_EQ(Run(/*in_flight=*/true, [] {}), absl::OkStatus());
  EXPECT_EQ(taken_, kGroups);
  StepMetrics metrics;
  EXPECT_EQ(Responses(*dock_), AllAtOnce(metrics));
  for (const char* figure : {"perf/num_generated_tokens", "response_length/mean", "response_length/max"}) {
    EXPECT_EQ(metrics_.Values().at(figure), metrics.Values().at(figure)) << figure;
  }
}

TEST_F(ServedRolloutTest, WhatIsTakenOnceThereAreNewerWeightsIsNotAnsweredWithTheOldOnes) {
  Serve(5);
  ASSERT_EQ(Run(/*in_flight=*/false, [this] { Serve(6); }), absl::OkStatus());
  EXPECT_EQ(taken_, 2);
  const auto rows = dock_->Fetch({.partition = "train", .rows = {0}, .columns = {kResponses}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->cell(0, 0).weights_version, 5);
  const auto later = dock_->Fetch({.partition = "train", .rows = {3}, .columns = {kResponses}});
  EXPECT_TRUE(absl::IsDeadlineExceeded(later.status())) << "it waits for the new ones: " << later.status();
}

TEST_F(ServedRolloutTest, AnErrorWhileItTakesMoreEndsItWithNothingLeftInTheEngine) {
  Serve(5);
  const absl::Status status =
      Run(/*in_flight=*/true, [this] { ASSERT_EQ(dock_->DropPartition("train"), absl::OkStatus()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST_F(RolloutStageTest, AnAnswerEndsWhereThePromptLeavesNoMoreRoom) {
  const auto lengths = [&](const LengthLimits& limits) {
    std::vector<size_t> longest(kGroups, 0);
    const auto responses = AllAtOnce(metrics_, limits);
    for (size_t row = 0; row < kRows; ++row) longest[row / 3] = std::max(longest[row / 3], responses[row].size());
    return longest;
  };
  // Prompts have 1, 2, 3 and 4 tokens.
  const auto free = lengths({});
  const auto limited = lengths({.max_model_len = 6});
  const auto one_less = lengths({.max_model_len = 6, .leaves_last_position = true});
  for (size_t group = 0; group < kGroups; ++group) {
    EXPECT_EQ(limited[group], std::min<size_t>(free[group], 5 - group));
    EXPECT_EQ(one_less[group], std::min<size_t>(free[group], 4 - group));
  }
  const LengthLimits limits{.max_model_len = 6, .leaves_last_position = true};
  EXPECT_EQ(*limits.MaxNewTokens(9, 4, 48), 1);
  EXPECT_EQ(*limits.MaxNewTokens(2, 1, 48), 2);
  EXPECT_THAT(limits.MaxNewTokens(9, 5, 48).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"5 tokens", "6 positions"}));
  EXPECT_EQ(*LengthLimits{}.MaxNewTokens(100, 40, 48), 8);
}

}  // namespace
}  // namespace tdock::trainer
