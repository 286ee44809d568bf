// DeepSpeed-Chat's table of reward-model pairs through what training runs: pairs as they are fed to a dock, and the
// objective of a reward model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tdock/local_dock.h"
#include "trainer/loop/feed.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/preference_objective.h"

namespace tdock::trainer {
namespace {

using Tokens = std::vector<int32_t>;

// What a model is taken to say at each place of the chosen and of the rejected sequence, padding included.
const std::vector<float> kChosenValues = {2.01F, 0.23F, 2.89F, 0.66F, 0.33F, 2.25F, 0.36F, 0.99F, 1.32F, 1.62F};
const std::vector<float> kRejectedValues = {2.01F, 0.23F, 2.89F, -0.5F, 0.8F, 0.1F, 0.7F, -0.2F, 0.4F, 0.05F};

struct TablePair {
  const char* name;
  Tokens chosen, rejected;  // prompt and answer
  size_t prompt;
  int32_t padding;
  double loss, chosen_score, rejected_score;
};

const std::vector<TablePair>& Table() {
  static const auto* const table = new std::vector<TablePair>{
      {"A", {11, 22, 33, 44, 55, 66}, {11, 22, 33, 40, 50}, 3, 0, 0.446126, 2.25, 0.80},
      {"B: the first token equals the padding",
       {2, 11, 22, 44, 55, 66},
       {2, 11, 22, 40, 50},
       2,
       2,
       0.446126,
       2.25,
       0.80},
      {"D: no padding", {11, 22, 33, 44, 55, 66}, {11, 22, 33, 40, 50, 60}, 2, 0, 0.446126, 2.25, 0.1},
      {"E: one the beginning of the other", {11, 22, 33, 44, 55}, {11, 22, 33, 44}, 2, 0, 0.955509, 0.33, -0.5}};
  return *table;
}

data::EncodedSample SampleOf(const TablePair& pair) {
  const auto mask = [&](const Tokens& ids) {
    std::vector<uint8_t> counted(ids.size(), 1);
    std::fill_n(counted.begin(), pair.prompt, 0);
    return counted;
  };
  return {.ids = pair.chosen,
          .loss_mask = mask(pair.chosen),
          .rejected = pair.rejected,
          .rejected_mask = mask(pair.rejected)};
}

// The objective's batch of all rows of a dock, as an update stage makes it, with the table's values.
TokenBatch BatchOf(Batch fed, const Objective& objective) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  EXPECT_TRUE(dock->CreatePartition({.name = "train",
                                     .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kComparedFrom}),
                                     .group_size = 2})
                  .ok());
  PutRequest request{.partition = "train"};
  for (int64_t row = 0; row < fed.rows(); ++row) request.groups.push_back(static_cast<GroupId>(row / 2));
  request.batch = std::move(fed);
  const auto put = dock->Put(request);
  EXPECT_TRUE(put.ok()) << put.status();
  std::vector<std::string> columns = objective.columns();
  columns.insert(columns.end(), {kPrompt, kResponses, kResponseMask});
  const auto rows = dock->Fetch({.partition = "train", .rows = put->rows, .columns = columns});
  EXPECT_TRUE(rows.ok()) << rows.status();

  const std::vector<Sequence> samples = *SequencesOf(*rows);
  std::vector<int64_t> order(samples.size()), lengths;
  std::iota(order.begin(), order.end(), 0);
  std::vector<float> values;
  for (size_t s = 0; s < samples.size(); ++s) {
    lengths.push_back(static_cast<int64_t>(samples[s].response.size()));
    const std::vector<float>& all = s % 2 == 0 ? kChosenValues : kRejectedValues;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(samples[s].prompt.size());
    values.insert(values.end(), begin, begin + lengths.back());
  }
  TokenBatch batch;
  batch.tokens = algo::MakeTokens(*TokenColumn(*rows, order, kResponseMask, samples), lengths);
  batch.counts = algo::CountsOf(batch.tokens);
  batch.values = at::tensor(values);
  for (const std::string& column : objective.columns()) {
    batch.columns[column].values = *TokenColumn(*rows, order, column, samples);
  }
  return batch;
}

TEST(PairTable, TheLossOfEveryTokenIsThatOfDeepSpeedChat) {
  const auto objective = MakeRewardObjective({.loss = RewardObjectiveOptions::Loss::kEveryToken});
  for (const TablePair& pair : Table()) {
    SCOPED_TRACE(pair.name);
    const std::vector<data::EncodedSample> samples = {SampleOf(pair)};
    const auto fed = FeedPairs(samples, {.pad_with = pair.padding});
    ASSERT_TRUE(fed.ok()) << fed.status();
    StepMetrics metrics;
    EXPECT_NEAR(objective->Loss(BatchOf(*fed, *objective), metrics).item<double>(), pair.loss, 1e-6);
    EXPECT_NEAR(metrics.Values().at("train/chosen"), pair.chosen_score, 1e-6);
    EXPECT_NEAR(metrics.Values().at("train/rejected"), pair.rejected_score, 1e-6);
  }
}

// Pairs of equal answers are refused before they are fed; of one that is there all the same, the last place counts.
TEST(PairTable, OfABatchTheLossIsTheMeanOverPairs) {
  const auto objective = MakeRewardObjective({.loss = RewardObjectiveOptions::Loss::kEveryToken});
  const Tokens prompt = {11, 22, 33}, equal = {44, 0, 0, 0, 0, 0, 0};
  const std::vector<uint8_t> mask_of_equal = {1, 0, 0, 0, 0, 0, 0};
  Batch batch;
  const auto add = [&](const char* name, const auto& column) { ASSERT_TRUE(batch.Add(name, column).ok()); };
  add(kPrompt, Column::FromRows(std::vector<Tokens>(4, prompt)));
  add(kResponses, Column::FromRows(std::vector<Tokens>{{44, 55, 66}, {40, 50, 0}, equal, equal}));
  add(kResponseMask,
      Column::FromRows(std::vector<std::vector<uint8_t>>{{1, 1, 1}, {1, 1, 0}, mask_of_equal, mask_of_equal}));
  add(kComparedFrom, Column::FromValues(std::vector<float>{0, 0, 6, 6}));
  TokenBatch tokens = BatchOf(std::move(batch), *objective);
  tokens.values.narrow(0, 13, 7).copy_(tokens.values.narrow(0, 6, 7));  // the same answer has the same values
  StepMetrics metrics;
  EXPECT_NEAR(objective->Loss(tokens, metrics).item<double>(), 0.569636, 1e-6);
}

TEST(PairTable, TheScoreOfAnAnswerIsTheValueOfItsLastToken) {
  const at::Tensor values = at::arange(5, 11).to(at::kFloat) / 10;  // behind a prompt of four places
  const std::vector<int64_t> lengths = {6};
  const auto score = [&](const std::vector<uint8_t>& mask) {
    return AnswerScores(values, algo::MakeTokens(at::tensor(mask, at::kByte), lengths), AnswerScore::kLastToken)
        .item<double>();
  };
  EXPECT_NEAR(score({1, 1, 1, 0, 0, 0}), 0.7, 1e-6);
  EXPECT_NEAR(score({1, 1, 1, 1, 1, 1}), 1.0, 1e-6);
}

}  // namespace
}  // namespace tdock::trainer
