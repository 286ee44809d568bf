#include "trainer/loop/feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/status.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

TEST(Feed, AnswersBeginWithTheFirstTokenThatTheLossCounts) {
  const std::vector<data::EncodedSample> samples = {
      {.ids = {5, 6, 7, 8}, .loss_mask = {0, 0, 1, 1}},
      {.ids = {5, 6, 7}, .loss_mask = {1, 0, 1}},  // nothing predicts the first token
      {.ids = {1, 2, 3, 4, 5}, .loss_mask = {0, 1, 0, 0, 1}}};
  const auto batch = FeedAnswers(samples);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(*batch->Find(kPrompt)->Row<int32_t>(0), ElementsAre(5, 6));
  EXPECT_THAT(*batch->Find(kPrompt)->Row<int32_t>(1), ElementsAre(5));
  EXPECT_THAT(*batch->Find(kResponses)->Row<int32_t>(1), ElementsAre(6, 7));
  EXPECT_THAT(*batch->Find(kResponseMask)->Row<uint8_t>(1), ElementsAre(0, 1));
  EXPECT_THAT(*batch->Find(kResponseMask)->Row<uint8_t>(2), ElementsAre(1, 0, 0, 1));
}

TEST(Feed, PromptsTakeTheirTextsAlong) {
  const std::vector<data::EncodedSample> samples = {
      {.ids = {5, 6}, .prompt_text = "what?", .truth = "this", .source = "quiz", .kept = {"hard"}},
      {.ids = {7}, .prompt_text = "and?", .truth = "that", .source = "quiz", .kept = {"easy"}}};
  const auto batch = FeedPrompts(samples, {"level"});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(*batch->Find(kPromptText)->Text(0), "what?");
  EXPECT_EQ(*batch->Find(kTruth)->Text(1), "that");
  EXPECT_EQ(*batch->Find(kSource)->Text(1), "quiz");
  EXPECT_EQ(*batch->Find("level")->Text(1), "easy");
}

TEST(Feed, ReportsLengthsOfPromptsAndOfGivenAnswers) {
  const std::vector<data::EncodedSample> samples = {{.ids = {5, 6, 7, 8}, .loss_mask = {0, 0, 1, 1}},
                                                    {.ids = {5, 6, 7}, .loss_mask = {1, 0, 1}}};
  StepMetrics prompts, answers, pairs;
  ReportLengths(data::Phase::kPrompt, samples, 4, prompts);
  const std::map<std::string, double> of_prompts = {{"prompt_length/clip_ratio", 0.5},
                                                    {"prompt_length/mean", 3.5},
                                                    {"prompt_length/max", 4},
                                                    {"prompt_length/min", 3}};
  EXPECT_EQ(prompts.Values(), of_prompts);
  ReportLengths(data::Phase::kSft, samples, 4, answers);
  const std::map<std::string, double> of_answers = {{"prompt_length/mean", 1.5}, {"prompt_length/max", 2},
                                                    {"prompt_length/min", 1},    {"response_length/mean", 2.0},
                                                    {"response_length/max", 2},  {"response_length/min", 2}};
  EXPECT_EQ(answers.Values(), of_answers);
  const std::vector<data::EncodedSample> preferences = {
      {.ids = {5, 6, 7, 8}, .loss_mask = {0, 0, 1, 1}, .rejected = {5, 6, 9}, .rejected_mask = {0, 0, 1}}};
  ReportLengths(data::Phase::kReward, preferences, 4, pairs);
  const std::map<std::string, double> of_pairs = {{"prompt_length/mean", 2},  {"prompt_length/max", 2},
                                                  {"prompt_length/min", 2},   {"response_length/mean", 1.5},
                                                  {"response_length/max", 2}, {"response_length/min", 1}};
  EXPECT_EQ(pairs.Values(), of_pairs);
  StepMetrics nothing;
  ReportLengths(data::Phase::kUnsupervised, samples, 4, nothing);
  EXPECT_TRUE(nothing.Values().empty());
}

}  // namespace
}  // namespace tdock::trainer
