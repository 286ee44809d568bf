// What ReMax compares with: the rewards of the likeliest answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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

using testing::ElementsAre;

// Scores answers by their lengths; that to one prompt has none.
class LengthReward final : public reward::Reward {
 public:
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer>) override {
    return absl::UnimplementedError("one by one only");
  }
  absl::Status ScoreEach(std::span<const reward::Answer> answers, const StopCheck&,
                         const reward::ScoreSink& sink) override {
    for (size_t i = 0; i < answers.size(); ++i) {
      asked.push_back(answers[i]);
      reward::AnswerScore score{.total = static_cast<float>(answers[i].response.size())};
      score.left_out = answers[i].prompt == unscored;
      sink(i, std::move(score));
    }
    return absl::OkStatus();
  }

  std::vector<reward::Answer> asked;
  std::string unscored = "none";
};

class BaselineStageTest : public testing::Test {
 protected:
  static constexpr int64_t kGroups = 3, kSamples = 2, kRows = kGroups * kSamples;

  BaselineStageTest()
      : policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, false), 3, at::kCPU), 5} {
    policy_.decoder.LimitVocabulary(tokenizer_->vocab_size());
    std::vector<ColumnSpec> columns = ColumnsNamed({kPrompt, kPromptText, kTruth, kSource, kRewardBaselines});
    columns.push_back({"level", ColumnType::Bytes()});
    EXPECT_EQ(dock_->CreatePartition({.name = "train", .columns = columns, .group_size = kSamples}), absl::OkStatus());
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::string> texts;
    std::vector<GroupId> groups;
    for (int32_t row = 0; row < kRows; ++row) {
      const int32_t group = row / static_cast<int32_t>(kSamples);
      prompts.emplace_back(static_cast<size_t>(1 + group), 1 + group);
      texts.push_back("question " + std::to_string(group));
      groups.push_back(static_cast<GroupId>(group));
    }
    Batch batch;
    EXPECT_EQ(batch.Add(kPrompt, Column::FromRows(prompts)), absl::OkStatus());
    for (const char* text : {kPromptText, kTruth, kSource, "level"}) {
      EXPECT_EQ(batch.Add(text, Column::FromStrings(texts)), absl::OkStatus());
    }
    EXPECT_TRUE(dock_->Put({.partition = "train", .batch = batch, .groups = groups}).ok());
  }

  std::unique_ptr<Stage> Make(const BaselineOptions& options = {.max_new_tokens = kLongest, .more = {"level"}}) {
    auto stage = MakeBaselineStage(policy_, *tokenizer_, MakeLocalEngine(policy_.decoder, {.end_tokens = {4, 5, 6}}),
                                   ScoredBy(reward_), options);
    EXPECT_EQ(runner_.Add(*stage), absl::OkStatus());
    return stage;
  }

  std::vector<float> Baselines(std::vector<RowId> ids = {0, 1, 2, 3, 4, 5}) {
    const auto rows = dock_->Fetch({.partition = "train", .rows = ids, .columns = {kRewardBaselines}});
    EXPECT_TRUE(rows.ok()) << rows.status();
    std::vector<float> values;
    for (size_t i = 0; rows.ok() && i < rows->size(); ++i)
      values.push_back(rows->Get<float>(i, kRewardBaselines)->front());
    return values;
  }

  // The likeliest answers, one prompt after another.
  std::vector<engine::Completion> Greedy() {
    engine::Engine engine(policy_.decoder, {.end_tokens = {4, 5, 6}});
    std::vector<engine::Completion> completions;
    for (int32_t group = 0; group < kGroups; ++group) {
      const std::vector<engine::Prompt> prompt = {
          {.tokens = std::vector<int32_t>(static_cast<size_t>(1 + group), 1 + group)}};
      completions.push_back(engine.Generate(prompt, {.temperature = 0, .max_new_tokens = kLongest})->front());
    }
    return completions;
  }

  static constexpr int64_t kLongest = 9;
  const std::unique_ptr<text::CharTokenizer> tokenizer_ = *text::CharTokenizer::Create("abcdefgh");
  Policy policy_;
  LengthReward reward_;
  std::unique_ptr<Dock> dock_ = MakeLocalDock();
  StageRunner runner_{*dock_, "train"};
  StepMetrics metrics_;
  StageContext context_{.step = 1, .metrics = metrics_};
};

TEST_F(BaselineStageTest, EachRowGetsTheRewardOfTheLikeliestAnswerToItsPrompt) {
  const auto stage = Make();
  EXPECT_EQ(*runner_.Run(*stage, kGroups, context_), 0);
  const std::vector<engine::Completion> greedy = Greedy();
  ASSERT_EQ(reward_.asked.size(), static_cast<size_t>(kGroups)) << "each prompt is answered once";
  const std::vector<float> baselines = Baselines();
  float sum = 0;
  for (size_t group = 0; group < greedy.size(); ++group) {
    const reward::Answer& asked = reward_.asked[group];
    EXPECT_EQ(asked.response, *ResponseText(*tokenizer_, greedy[group].tokens, greedy[group].finished));
    EXPECT_EQ(asked.finished, greedy[group].finished);
    EXPECT_EQ(asked.prompt, "question " + std::to_string(group));
    EXPECT_THAT(asked.columns, ElementsAre(testing::Pair("level", asked.truth)));
    for (size_t row : {2 * group, 2 * group + 1}) EXPECT_EQ(baselines[row], static_cast<float>(asked.response.size()));
    sum += static_cast<float>(asked.response.size());
  }
  EXPECT_NEAR(metrics_.Values().at("reward_baseline/mean"), sum / kGroups, 1e-6);
}

TEST_F(BaselineStageTest, APenaltyForLengthIsPartOfTheReward) {
  const algo::OverlongOptions overlong{.max_length = kLongest, .buffer = kLongest - 1, .factor = 3};
  const auto stage = Make({.max_new_tokens = kLongest, .overlong = overlong});
  ASSERT_TRUE(runner_.Run(*stage, kGroups, context_).ok());
  const std::vector<float> baselines = Baselines();
  const std::vector<engine::Completion> greedy = Greedy();
  double penalties = 0;
  for (size_t group = 0; group < greedy.size(); ++group) {
    const double penalty = algo::OverlongPenalty(std::ssize(greedy[group].tokens), overlong);
    EXPECT_NEAR(baselines[2 * group], static_cast<double>(reward_.asked[group].response.size()) + penalty, 1e-6);
    penalties += penalty;
  }
  EXPECT_LT(penalties, 0) << "an answer of the test is long";
}

TEST_F(BaselineStageTest, ItIsClampedAsTheScoresThatItIsComparedWith) {
  const auto stage = Make({.max_new_tokens = kLongest, .score_clip = 0.5});
  ASSERT_TRUE(runner_.Run(*stage, kGroups, context_).ok());
  EXPECT_THAT(Baselines(), testing::Each(testing::AnyOf(0.5F, 0.0F)));
  EXPECT_THAT(Baselines(), testing::Contains(0.5F));
}

TEST_F(BaselineStageTest, APromptWhoseAnswerHasNoScoreIsLeftOut) {
  reward_.unscored = "question 1";
  const auto stage = Make();
  EXPECT_EQ(*runner_.Run(*stage, kGroups, context_), kSamples);
  EXPECT_EQ(Baselines({0, 1, 4, 5}).size(), 4u);
  EXPECT_THAT(dock_->Fetch({.partition = "train", .rows = {2}, .columns = {kRewardBaselines}}).status(),
              testing::Not(absl::OkStatus()));
}

TEST_F(BaselineStageTest, AStageThatIsStoppedBeginsAgainAndReportsItsWorkOnce) {
  bool scored = false;
  const auto stage = MakeBaselineStage(
      policy_, *tokenizer_, MakeLocalEngine(policy_.decoder, {.end_tokens = {4, 5, 6}}),
      [&scored](const std::vector<GreedyAnswer>& answers, StageContext&) -> absl::StatusOr<std::vector<float>> {
        if (!std::exchange(scored, true)) return absl::CancelledError("interrupted");
        return std::vector<float>(answers.size(), 2.0F);
      },
      {.max_new_tokens = kLongest});
  ASSERT_EQ(runner_.Add(*stage), absl::OkStatus());
  EXPECT_THAT(runner_.Run(*stage, kGroups, context_).status(),
              Fails(absl::StatusCode::kCancelled, {"stage 'baseline'", "interrupted"}));
  EXPECT_FALSE(metrics_.Values().contains("perf/flops/baseline"));
  EXPECT_EQ(*runner_.Run(*stage, kGroups, context_), 0);
  EXPECT_GT(metrics_.Values().at("perf/flops/baseline"), 0);
  EXPECT_THAT(Baselines(), testing::Each(2.0F));
}

TEST_F(BaselineStageTest, AStageThatIsStoppedWhileItGeneratesEnds) {
  const auto stage = Make();
  context_.check_stop = [] { return absl::CancelledError("interrupted"); };
  EXPECT_THAT(runner_.Run(*stage, kGroups, context_).status(),
              Fails(absl::StatusCode::kCancelled, {"stage 'baseline'", "interrupted"}));
  EXPECT_TRUE(reward_.asked.empty());
}

TEST_F(BaselineStageTest, AScoreForEachAnswerIsNeededAndOneThatThrowsNamesTheStage) {
  const auto run = [&](const ScoreGreedy& score) {
    const auto stage = MakeBaselineStage(policy_, *tokenizer_, MakeLocalEngine(policy_.decoder, {.end_tokens = {4}}),
                                         score, {.max_new_tokens = kLongest});
    EXPECT_EQ(runner_.Add(*stage), absl::OkStatus());
    return runner_.Run(*stage, kGroups, context_).status();
  };
  EXPECT_THAT(run([](const auto&, StageContext&) { return std::vector<float>(2, 1.0F); }),
              Fails(absl::StatusCode::kInternal, {"stage 'baseline'", "2 rewards", "3 answers"}));
  EXPECT_THAT(run([](const auto&, StageContext&) -> absl::StatusOr<std::vector<float>> {
                throw std::runtime_error("the judge fell asleep");
              }),
              Fails(absl::StatusCode::kInternal, {"stage 'baseline'", "the judge fell asleep"}));
}

}  // namespace
}  // namespace tdock::trainer
