#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

// The metrics of the only step of a run with these keys.
nlohmann::json StepWith(std::vector<std::string> overrides) {
  for (const char* small : {"trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1",
                            "reward.regex.weight=1", "reward.regex.pattern=7"}) {
    overrides.push_back(small);
  }
  SmallRun run("grpo", overrides);
  const auto result = run.Train();
  EXPECT_TRUE(result.ok()) << result.status() << " with " << overrides.front();
  return result.ok() ? run.Metrics().back() : nlohmann::json::object();
}

std::string RefusalOf(const std::vector<std::string>& overrides) {
  SmallRun run("grpo", overrides);
  return std::string(run.Train().status().message());
}

TEST(ActorSection, EveryPolicyLossTrains) {
  std::set<double> norms;
  for (const std::string loss : {"vanilla", "cispo", "gpg", "clip_cov", "kl_cov", "sapo", "vespo"}) {
    const auto step = StepWith({"actor.policy_loss.loss_mode=" + loss});
    EXPECT_EQ(step["actor/optimizer_steps"], 2.0) << loss;
    norms.insert(step["actor/grad_norm"].get<double>());
  }
  for (const std::string loss : {"gspo", "sequence_clip", "geo_mean"}) {
    const auto step = StepWith({"actor.policy_loss.loss_mode=" + loss, "actor.loss_agg_mode=seq-mean-token-mean"});
    EXPECT_EQ(step["actor/optimizer_steps"], 2.0) << loss;
    norms.insert(step["actor/grad_norm"].get<double>());
  }
  EXPECT_GE(norms.size(), 5u) << "each key must reach the loss";
}

TEST(ActorSection, EveryEstimatorOfAdvantagesTrains) {
  std::set<double> norms;
  for (const std::string estimator :
       {"grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}) {
    norms.insert(StepWith({"algorithm.adv_estimator=" + estimator})["actor/grad_norm"].get<double>());
  }
  norms.insert(StepWith({"algorithm.norm_adv_by_std_in_grpo=false"})["actor/grad_norm"].get<double>());
  EXPECT_GE(norms.size(), 6u) << "each key must reach the advantages";
}

TEST(ActorSection, TheAggregationAndItsLengthReachTheLoss) {
  const auto norm = [](const std::vector<std::string>& keys) {
    return StepWith(keys)["actor/grad_norm"].get<double>();
  };
  const double default_length = norm({"actor.loss_agg_mode=seq-mean-token-sum-norm"});
  const double same = norm({"actor.loss_agg_mode=seq-mean-token-sum-norm", "actor.loss_scale_factor=5"});
  const double ten = norm({"actor.loss_agg_mode=seq-mean-token-sum-norm", "actor.loss_scale_factor=10"});
  EXPECT_EQ(default_length, same) << "data.max_response_length is 5";
  EXPECT_LT(ten, same);
}

TEST(ActorSection, WithoutAKlThereIsNoReferenceModel) {
  const auto with = StepWith({"actor.kl_loss_coef=0.001"});
  EXPECT_TRUE(with.contains("timing_s/ref"));
  EXPECT_TRUE(with.contains("actor/kl_loss"));
  const auto without = StepWith({"actor.kl_loss_coef=0"});
  EXPECT_FALSE(without.contains("timing_s/ref"));
  EXPECT_FALSE(without.contains("actor/kl_loss"));
  const auto in_reward = StepWith({"actor.kl_loss_coef=0", "algorithm.use_kl_in_reward=true",
                                   "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0.05"});
  EXPECT_TRUE(in_reward.contains("timing_s/ref"));
  EXPECT_EQ(in_reward["actor/reward_kl_penalty_coeff"], 0.05);
}

TEST(ActorSection, EpochsTargetsEntropyAndRolloutWeightsReachTheUpdate) {
  const auto epochs = StepWith({"actor.ppo_epochs=3", "actor.entropy_coeff=0.01"});
  EXPECT_EQ(epochs["actor/optimizer_steps"], 6.0);
  const auto stopped = StepWith({"actor.ppo_epochs=50", "actor.optim.lr=0.05", "actor.target_kl=0.001"});
  EXPECT_EQ(stopped["actor/early_stops"], 1.0);
  EXPECT_LT(stopped["actor/optimizer_steps"].get<double>(), 100);
  const auto weighted = StepWith({"algorithm.rollout_correction.rollout_is=sequence"});
  EXPECT_NEAR(weighted["rollout_corr/rollout_is_mean"].get<double>(), 1, 1e-3);
  EXPECT_LT(weighted["rollout_corr/max_abs_diff"].get<double>(), 1e-4);
}

TEST(ActorSection, AnswersOfASecondDataSetAreLearnedBeside) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/more.jsonl", Reversals(false)).ok());
  SmallRun run("grpo", {"actor.ptx_coef=1", "data.ptx_files=" + folder + "/more.jsonl", "actor.ptx_batch_size=16",
                        "trainer.total_training_steps=30", "trainer.test_freq=-1", "actor.optim.lr=2e-3"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const auto metrics = run.Metrics();
  EXPECT_LT(metrics.back()["actor/ptx_loss"].get<double>(), 0.8 * metrics[1]["actor/ptx_loss"].get<double>());
  EXPECT_THAT(RefusalOf({"actor.ptx_coef=1"}), HasSubstr("name the files"));
  EXPECT_THAT(RefusalOf({"actor.ptx_coef=1", "data.ptx_files=" + folder + "/none.jsonl"}), HasSubstr("none.jsonl"));
}

TEST(ActorSection, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_THAT(RefusalOf({"actor.policy_loss.loss_mode=gspo"}), HasSubstr("aggregated by seq-mean-token-mean only"));
  EXPECT_THAT(RefusalOf({"actor.clip_ratio_c=0.5"}), HasSubstr("dual_clip must be above 1"));
  EXPECT_THAT(RefusalOf({"algorithm.adv_estimator=grpo_passk", "rollout.n=1"}), HasSubstr("at least 2"));
  EXPECT_THAT(RefusalOf({"actor.tau_pos=2"}), HasSubstr("only sapo has it"));
  EXPECT_THAT(RefusalOf({"algorithm.kl_ctrl.kl_coef=1"}), HasSubstr("there is no KL in the reward"));
  EXPECT_THAT(
      RefusalOf({"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=5"}),
      HasSubstr("above 6.4"));
}

}  // namespace
}  // namespace tdock::trainer
