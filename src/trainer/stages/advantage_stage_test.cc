#include "trainer/stages/advantage_stage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "model/tensor_torch/convert.h"
#include "tdock/local_dock.h"
#include "trainer/algo/advantage.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// Two prompts with two answers each; one token is a tool's.
struct Answers {
  std::vector<float> rewards = {1, 0, 0.5f, 0.25f};
  std::vector<std::vector<uint8_t>> mask = {{1, 1}, {1, 0, 1}, {1}, {1, 1}};
  std::vector<std::vector<float>> old_log_probs = {{-1, -2}, {-1, -9, -1}, {-2}, {-3, -1}};
  std::vector<std::vector<float>> ref_log_prob = {{-1.5f, -2}, {-1, -1, -1.25f}, {-2}, {-3, -1}};
  std::vector<float> baselines = {0.5f, 0.5f, 0.25f, 0.25f};
};

class AdvantageStageTest : public testing::Test {
 protected:
  // The advantages of all tokens, for each time that the stage is run on the same answers.
  std::vector<at::Tensor> Run(const AdvantageOptions& options, int times = 1, const Answers& answers = {}) {
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(dock->CreatePartition({.name = "train",
                                       .columns = ColumnsNamed({kPrompt, kRewards, kRewardBaselines, kResponseMask,
                                                                kOldLogProbs, kRefLogProb, kAdvantages}),
                                       .group_size = 2})
                    .ok());
    EXPECT_TRUE(dock->RegisterConsumer("train", {.name = "reader", .reads = {kPrompt}}).ok());
    const std::unique_ptr<Stage> stage = MakeAdvantageStage(options);
    StageRunner runner(*dock, "train");
    EXPECT_TRUE(runner.Add(*stage).ok());
    std::vector<at::Tensor> results;
    for (int i = 0; i < times; ++i) {
      const GroupId group = static_cast<GroupId>(2 * i);
      PutRequest request{.partition = "train", .groups = {group, group, group + 1, group + 1}};
      const auto add = [&](const char* name, const auto& column) { EXPECT_TRUE(request.batch.Add(name, column).ok()); };
      add(kPrompt, Column::FromRows(std::vector<std::vector<int32_t>>(4, {1})));
      add(kRewards, Column::FromValues(answers.rewards));
      add(kRewardBaselines, Column::FromValues(answers.baselines));
      add(kResponseMask, Column::FromRows(answers.mask));
      add(kOldLogProbs, Column::FromRows(answers.old_log_probs));
      add(kRefLogProb, Column::FromRows(answers.ref_log_prob));
      const auto put = dock->Put(request);
      EXPECT_TRUE(put.ok());
      StepMetrics metrics;
      StageContext context{i + 1, metrics};
      const auto ran = runner.Run(*stage, 2, context);
      EXPECT_TRUE(ran.ok()) << ran.status();
      metrics_.push_back(metrics.Values());
      const Rows rows = *dock->Fetch({.partition = "train", .rows = put->rows, .columns = {kAdvantages}});
      results.push_back(ValuesOf(*rows.ToColumn(kAdvantages)).value());
    }
    return results;
  }

  std::vector<std::map<std::string, double>> metrics_;
};

TEST_F(AdvantageStageTest, EachEstimatorGivesTokensWhatItsFunctionGives) {
  using Estimator = AdvantageEstimator;
  const Answers answers;
  const at::Tensor rewards = at::tensor(answers.rewards), groups = at::tensor({0, 0, 1, 1}, at::kLong);
  const algo::Tokens tokens = algo::MakeTokens(at::tensor({1, 1, 1, 0, 1, 1, 1, 1}), std::vector<int64_t>{2, 3, 1, 2});
  const auto spread = [&](const at::Tensor& values) {
    return algo::Unmasked(algo::Spread(values, tokens), tokens.mask);
  };
  const at::Tensor token_rewards = algo::TokenRewards(rewards, {}, {}, tokens);
  const std::pair<AdvantageOptions, at::Tensor> cases[] = {
      {{}, spread(algo::GrpoAdvantages(rewards, groups))},
      {{.divide_by_deviation = false}, spread(algo::GrpoAdvantages(rewards, groups, {.divide_by_deviation = false}))},
      {{.estimator = Estimator::kPassAtK},
       spread(algo::PassAtKAdvantages(rewards, groups, {.divide_by_deviation = true}))},
      {{.estimator = Estimator::kRloo}, spread(algo::RlooAdvantages(rewards, groups))},
      {{.estimator = Estimator::kOpo}, spread(algo::OpoAdvantages(rewards, groups, algo::CountBySequence(tokens)))},
      {{.estimator = Estimator::kGpg}, spread(algo::GpgAdvantages(rewards, groups))},
      {{.estimator = Estimator::kReinforcePlusPlusBaseline},
       algo::ReinforcePlusPlusBaselineAdvantages(rewards, groups, tokens)},
      {{.estimator = Estimator::kReinforcePlusPlus, .gamma = 0.5},
       algo::ReinforcePlusPlusAdvantages(token_rewards, tokens, 0.5).advantages},
      {{.estimator = Estimator::kRemax},
       algo::RemaxAdvantages(token_rewards, at::tensor(answers.baselines), tokens).advantages},
  };
  for (const auto& [options, expected] : cases) {
    const at::Tensor actual = Run(options).front();
    EXPECT_TRUE(at::allclose(actual, expected.to(at::kFloat), 1e-6, 1e-7))
        << "estimator " << static_cast<int>(options.estimator) << ": " << actual << " instead of " << expected;
    EXPECT_EQ(actual[3].item<float>(), 0) << "the tool's token";
  }
}

TEST_F(AdvantageStageTest, AKlInTheRewardIsTakenOffBeforeSamplesAreCompared) {
  const at::Tensor actual =
      Run({.estimator = AdvantageEstimator::kRloo, .kl = algo::KlRewardOptions{.coef = 0.2}}).front();
  // k1 of the tokens that count: 0.5 + 0, and 0 + 0.25; so rewards of 0.9 and −0.05.
  EXPECT_NEAR(actual[0].item<float>(), 0.95, 1e-6);
  EXPECT_NEAR(actual[2].item<float>(), -0.95, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/rewards/max"), 0.9, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/rewards/min"), -0.05, 1e-6);
  EXPECT_NEAR(metrics_[0].at("actor/reward_kl_penalty"), (0.25 + 0.125) / 4, 1e-6);
  EXPECT_EQ(metrics_[0].at("actor/reward_kl_penalty_coeff"), 0.2);
}

TEST_F(AdvantageStageTest, RemaxComparesWhatATokenBringsWithTheLikeliestAnswer) {
  const at::Tensor plain = Run({.estimator = AdvantageEstimator::kRemax}).front();
  // Rewards of 1, 0, 0.5 and 0.25 against 0.5, 0.5, 0.25 and 0.25; the second answer has a tool's token.
  const at::Tensor expected = at::tensor({0.5, 0.5, -0.5, 0.0, -0.5, 0.25, 0.0, 0.0}).to(at::kFloat);
  EXPECT_TRUE(at::allclose(plain, expected)) << plain;
  // The KL is taken off what a token and those after it bring, and not off the likeliest answer's reward.
  const at::Tensor with_kl =
      Run({.estimator = AdvantageEstimator::kRemax, .kl = algo::KlRewardOptions{.coef = 0.2}}).front();
  EXPECT_NEAR(with_kl[0].item<float>(), 1 - 0.2 * 0.5 - 0.5, 1e-6);
  EXPECT_NEAR(with_kl[1].item<float>(), 0.5, 1e-6) << "the KL is before it";
  EXPECT_NEAR(with_kl[4].item<float>(), 0 - 0.2 * 0.25 - 0.5, 1e-6);
}

TEST_F(AdvantageStageTest, APenaltyForLengthIsAddedToTheRewardWhoeverGaveIt) {
  const algo::OverlongOptions overlong{.max_length = 3, .buffer = 2, .factor = 0.5};
  const at::Tensor actual = Run({.estimator = AdvantageEstimator::kRloo, .overlong = overlong}).front();
  // Answers of 2, 3, 1 and 2 tokens: −0.25, −0.5, 0 and −0.25, so rewards of 0.75, −0.5, 0.5 and 0.
  EXPECT_NEAR(actual[0].item<float>(), 1.25, 1e-6);
  EXPECT_NEAR(actual[5].item<float>(), 0.5, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/rewards/min"), -0.5, 1e-6);
  EXPECT_NEAR(metrics_[0].at("overlong/penalty"), -0.25, 1e-6);
  EXPECT_NEAR(metrics_[0].at("overlong/ratio"), 0.75, 1e-6);
}

TEST_F(AdvantageStageTest, GroupsWithEqualRewardsAreCountedWhereTheyGiveNoAdvantage) {
  const Answers answers{.rewards = {1, 1, 0.5F, 0.25F}};
  const at::Tensor advantages = Run({}, 1, answers).front();
  EXPECT_EQ(advantages.slice(0, 0, 5).abs().max().item<float>(), 0);
  EXPECT_EQ(metrics_.back().at("critic/rewards/equal_share"), 0.5);
  // Answers of 2 and 3 tokens; the second is too long.
  Run({.overlong = algo::OverlongOptions{.max_length = 3, .buffer = 1, .factor = 1}}, 1, answers);
  EXPECT_EQ(metrics_.back().at("critic/rewards/equal_share"), 0) << "the penalty makes a difference";
  Run({.estimator = AdvantageEstimator::kReinforcePlusPlus}, 1, answers);
  EXPECT_FALSE(metrics_.back().contains("critic/rewards/equal_share")) << "it compares with the whole batch";
}

TEST_F(AdvantageStageTest, RewardsAtTheLimitOfTheirClampAreCounted) {
  Run({});
  EXPECT_FALSE(metrics_.back().contains("critic/score/clip_ratio"));
  Run({.score_clip = 0.5});
  EXPECT_EQ(metrics_.back().at("critic/score/clip_ratio"), 0.5);
}

TEST_F(AdvantageStageTest, AnAdaptiveCoefficientMovesFromStepToStep) {
  AdvantageOptions options{.kl = algo::KlRewardOptions{.coef = 0.2}};
  Run(options, 3);
  EXPECT_EQ(metrics_[2].at("actor/reward_kl_penalty_coeff"), 0.2) << "fixed";
  metrics_.clear();
  options.kl_target = algo::KlTarget{.kl = 1, .horizon = 100};
  Run(options, 3);
  // Far below the target: each step of 4 samples takes 0.2·4/100 of it off.
  EXPECT_NEAR(metrics_[1].at("actor/reward_kl_penalty_coeff"), 0.2 * 0.992, 1e-9);
  EXPECT_NEAR(metrics_[2].at("actor/reward_kl_penalty_coeff"), 0.2 * 0.992 * 0.992, 1e-9);
}

TEST_F(AdvantageStageTest, FiguresAreOfTokensThatCount) {
  Run({.divide_by_deviation = false});
  // 2 · 0.5, 2 · −0.5, 0.125 and 2 · −0.125
  EXPECT_NEAR(metrics_[0].at("critic/advantages/mean"), (1 - 1 + 0.125 - 0.25) / 7, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/advantages/max"), 0.5, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/returns/min"), -0.5, 1e-6);
  EXPECT_NEAR(metrics_[0].at("critic/rewards/mean"), 1.75 / 4, 1e-6);
}

TEST_F(AdvantageStageTest, ASampleOfWhichNothingCountsHasNoAdvantage) {
  Answers answers;
  answers.mask[1] = {0, 0, 0};
  const at::Tensor actual = Run({}, 1, answers).front();
  EXPECT_GT(actual[0].item<float>(), 0);
  EXPECT_EQ(actual.narrow(0, 2, 3).abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace tdock::trainer
