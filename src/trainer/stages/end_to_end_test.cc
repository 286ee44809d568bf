// DeepSpeed-Chat's worked examples of PPO through what training runs: rows on a dock, the stage of advantages, and the
// objectives of actor and critic.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "model/tensor_torch/convert.h"
#include "tdock/local_dock.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/advantage_stage.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/critic_objective.h"
#include "trainer/stages/policy.h"

namespace tdock::trainer {
namespace {

using Floats = std::vector<float>;

// An answer to a prompt of three tokens. Its end token has a reward, but the losses there do not count it: they take it
// for padding, which is another mask.
struct Episode {
  const char* name;
  float score;
  std::vector<uint8_t> counted_in_losses;
  Floats log_probs, ref_log_probs, values;  // as they were when it answered
  Floats new_log_probs, new_values;
  Floats rewards, advantages, returns;  // expected; so are the losses
  double actor_loss, critic_loss;
};

const std::vector<Episode>& Episodes() {
  static const auto* const episodes = [] {
    const Episode first{.name = "T1",
                        .score = 7.5F,
                        .counted_in_losses = {1, 1, 1, 0},
                        .log_probs = {-1, -2, -0.5F, -1.5F},
                        .ref_log_probs = {-1.2F, -1.5F, -0.5F, -2.5F},
                        .values = {0.1F, 0.2F, 0.3F, 0.4F},
                        .new_log_probs = {-0.7F, -2.5F, -0.4F, -1.5F},
                        .new_values = {0.5F, 0.3F, -0.1F, 0.6F},
                        .rewards = {-0.02F, 0.05F, 0, 4.9F},
                        .advantages = {4.170937F, 4.30625F, 4.375F, 4.5F},
                        .returns = {4.270937F, 4.50625F, 4.675F, 4.9F},
                        .actor_loss = -4.150707,
                        .critic_loss = 9.376918};
    Episode third = first;
    third.name = "T3";
    third.new_log_probs = third.log_probs;
    third.new_values = third.values;
    third.actor_loss = -4.284063;
    third.critic_loss = 9.180189;
    const Episode second{.name = "T2",
                         .score = -1.25F,
                         .counted_in_losses = {1, 1, 1, 1, 1},
                         .log_probs = {-1, -2, -0.5F, -1.5F, -0.3F},
                         .ref_log_probs = {-1.2F, -1.5F, -0.5F, -2.5F, -0.1F},
                         .values = {0.1F, 0.2F, 0.3F, 0.4F, 0.7F},
                         .new_log_probs = {-0.7F, -2.5F, -0.4F, -1.5F, -0.3F},
                         .new_values = {0.5F, 0.3F, -0.1F, 0.6F, 0.7F},
                         .rewards = {-0.02F, 0.05F, 0, -0.1F, -1.23F},
                         .advantages = {-1.087772F, -1.229234F, -1.451825F, -1.6335F, -1.93F},
                         .returns = {-0.987772F, -1.029234F, -1.151825F, -1.2335F, -1.23F},
                         .actor_loss = 1.523948,
                         .critic_loss = 1.263402};
    return new std::vector<Episode>{first, second, third};
  }();
  return *episodes;
}

// Rows of answers on a dock, with what the stages before the advantages have put.
class Experience {
 public:
  Experience() : dock_(MakeLocalDock()) {
    EXPECT_TRUE(dock_
                    ->CreatePartition(
                        {.name = "train",
                         .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kRolloutLogProbs, kOldLogProbs,
                                                  kRefLogProb, kValues, kRewards, kAdvantages, kReturns})})
                    .ok());
    EXPECT_TRUE(dock_->RegisterConsumer("train", {.name = "reader", .reads = {kPrompt}}).ok());
    std::vector<std::vector<int32_t>> responses;
    std::vector<std::vector<uint8_t>> mask;
    std::vector<Floats> log_probs, ref_log_probs, values;
    Floats scores;
    for (const Episode& episode : Episodes()) {
      responses.emplace_back(episode.log_probs.size(), 7);
      mask.emplace_back(episode.log_probs.size(), 1);
      log_probs.push_back(episode.log_probs);
      ref_log_probs.push_back(episode.ref_log_probs);
      values.push_back(episode.values);
      scores.push_back(episode.score);
    }
    PutRequest request{.partition = "train", .groups = {0, 1, 2}};
    const auto add = [&](const char* name, const auto& column) { EXPECT_TRUE(request.batch.Add(name, column).ok()); };
    add(kPrompt, Column::FromRows(std::vector<std::vector<int32_t>>(3, {4, 5, 6})));
    add(kResponses, Column::FromRows(responses));
    add(kResponseMask, Column::FromRows(mask));
    add(kRolloutLogProbs, Column::FromRows(log_probs));
    add(kOldLogProbs, Column::FromRows(log_probs));
    add(kRefLogProb, Column::FromRows(ref_log_probs));
    add(kValues, Column::FromRows(values));
    add(kRewards, Column::FromValues(scores));
    const auto put = dock_->Put(request);
    EXPECT_TRUE(put.ok()) << put.status();
    rows_ = put->rows;
  }

  void Run(Stage& stage) {
    StageRunner runner(*dock_, "train");
    ASSERT_TRUE(runner.Add(stage).ok());
    StageContext context{1, metrics_};
    const auto ran = runner.Run(stage, static_cast<int64_t>(rows_.size()), context);
    ASSERT_TRUE(ran.ok()) << ran.status();
  }

  // What an update stage makes an objective's batch of, with one row for a mini-batch.
  TokenBatch Batch(size_t row, const Objective& objective) {
    std::vector<std::string> columns = {kPrompt, kResponses};
    for (const std::string& column : objective.columns()) columns.push_back(column);
    const auto rows = dock_->Fetch({.partition = "train", .rows = {rows_[row]}, .columns = columns});
    EXPECT_TRUE(rows.ok()) << rows.status();
    const std::vector<Sequence> samples = *SequencesOf(*rows);
    const Episode& episode = Episodes()[row];
    TokenBatch batch;
    batch.tokens = algo::MakeTokens(at::tensor(episode.counted_in_losses, at::kByte),
                                    std::vector<int64_t>{static_cast<int64_t>(samples.front().response.size())});
    batch.counts = algo::CountsOf(batch.tokens);
    const std::vector<int64_t> order = {0};
    for (const std::string& column : objective.columns()) {
      batch.columns[column].values = *TokenColumn(*rows, order, column, samples);
    }
    return batch;
  }

  Floats Read(size_t row, const char* column) {
    const auto rows = dock_->Fetch({.partition = "train", .rows = {rows_[row]}, .columns = {column}});
    EXPECT_TRUE(rows.ok()) << rows.status();
    const auto numbers = rows->Get<float>(0, column);
    return {numbers->begin(), numbers->end()};
  }

  std::map<std::string, double> metrics() const { return metrics_.Values(); }

 private:
  const std::unique_ptr<Dock> dock_;
  std::vector<RowId> rows_;
  StepMetrics metrics_;
};

auto Near(const Floats& expected) { return testing::Pointwise(testing::FloatNear(2e-6F), expected); }

TEST(EndToEnd, PpoHasTheNumbersOfDeepSpeedChat) {
  Experience experience;
  experience.Run(*MakeAdvantageStage({.estimator = AdvantageEstimator::kGae,
                                      .gamma = 1.0,
                                      .lambda = 0.95,
                                      .score_clip = 5,
                                      .kl = algo::KlRewardOptions{.coef = 0.1}}));
  const auto actor = MakeActorObjective({.loss = {.clip_low = 0.2, .clip_high = 0.2}});
  const auto critic = MakeCriticObjective({.clip = 0.2});
  double rewards = 0;
  for (size_t row = 0; row < Episodes().size(); ++row) {
    const Episode& episode = Episodes()[row];
    SCOPED_TRACE(episode.name);
    rewards += std::accumulate(episode.rewards.begin(), episode.rewards.end(), 0.0) / 3;
    EXPECT_THAT(experience.Read(row, kAdvantages), Near(episode.advantages));
    EXPECT_THAT(experience.Read(row, kReturns), Near(episode.returns));
    StepMetrics metrics;
    TokenBatch batch = experience.Batch(row, *actor);
    batch.log_probs = at::tensor(episode.new_log_probs);
    batch.entropy = at::zeros_like(batch.log_probs);
    EXPECT_NEAR(actor->Loss(batch, metrics).item<double>(), episode.actor_loss, 5e-6);
    batch = experience.Batch(row, *critic);
    batch.values = at::tensor(episode.new_values);
    EXPECT_NEAR(critic->Loss(batch, metrics).item<double>(), episode.critic_loss, 5e-6);
  }
  EXPECT_NEAR(experience.metrics().at("critic/rewards/mean"), rewards, 1e-6);
}

}  // namespace
}  // namespace tdock::trainer
