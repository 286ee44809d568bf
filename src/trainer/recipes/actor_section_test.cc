#include "trainer/recipes/actor_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

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

// Each key fills the option that it is named after, and no other.
TEST(ActorSection, EveryKeyReachesItsOption) {
  ActorSection actor;
  AlgorithmSection algorithm;
  RunConfig run;
  RolloutSection rollout;
  config::Spec spec;
  BindRun(spec, run);
  BindRollout(spec, rollout, /*samples=*/true);
  BindActor(spec, actor, algorithm, run, rollout);
  const auto load = [&](const std::vector<std::string>& keys) {
    return config::Load(spec, "model.alphabet: 01\ndata.path: some.jsonl\n", "test", keys);
  };
  ASSERT_EQ(load({"actor.policy_loss.loss_mode=clip_cov",
                  "actor.clip_ratio_low=0.11",
                  "actor.clip_ratio_high=0.12",
                  "actor.clip_ratio_c=4",
                  "actor.policy_loss.clip_cov_ratio=0.13",
                  "actor.policy_loss.clip_cov_lb=0.14",
                  "actor.policy_loss.clip_cov_ub=0.15",
                  "actor.loss_agg_mode=seq-mean-token-sum-norm",
                  "actor.loss_scale_factor=17",
                  "actor.entropy_coeff=0.18",
                  "actor.kl_loss_coef=0.19",
                  "actor.kl_loss_type=abs",
                  "algorithm.adv_estimator=reinforce_plus_plus",
                  "algorithm.gamma=0.2",
                  "algorithm.use_kl_in_reward=true",
                  "algorithm.kl_penalty=k2",
                  "algorithm.kl_ctrl.type=adaptive",
                  "algorithm.kl_ctrl.kl_coef=0.21",
                  "algorithm.kl_ctrl.target_kl=0.22",
                  "algorithm.kl_ctrl.horizon=5000",
                  "algorithm.rollout_correction.rollout_is=token",
                  "algorithm.rollout_correction.rollout_is_threshold=2.3"}),
            absl::OkStatus());
  const ActorObjectiveOptions objective = ObjectiveOptions(actor, algorithm, rollout);
  EXPECT_EQ(objective.loss.kind, algo::PolicyLossKind::kClipCov);
  EXPECT_EQ(objective.loss.clip_low, 0.11);
  EXPECT_EQ(objective.loss.clip_high, 0.12);
  EXPECT_EQ(objective.loss.dual_clip, 4);
  EXPECT_EQ(objective.clip_cov.fraction, 0.13);
  EXPECT_EQ(objective.clip_cov.low, 0.14);
  EXPECT_EQ(objective.clip_cov.high, 0.15);
  EXPECT_EQ(objective.loss.reduction.how, algo::Aggregation::kSeqMeanTokenSumNorm);
  EXPECT_EQ(objective.loss.reduction.norm, 17);
  EXPECT_EQ(objective.loss.entropy_coef, 0.18);
  EXPECT_EQ(objective.loss.kl_coef, 0.19);
  EXPECT_EQ(objective.loss.kl_type, algo::KlEstimator::kAbs);
  ASSERT_TRUE(objective.rollout_weights.has_value());
  EXPECT_EQ(objective.rollout_weights->level, algo::ImportanceLevel::kToken);
  EXPECT_EQ(objective.rollout_weights->cap, 2.3);
  const AdvantageOptions advantage = algorithm.advantage_options(RolloutSection());
  EXPECT_EQ(advantage.estimator, AdvantageEstimator::kReinforcePlusPlus);
  EXPECT_EQ(advantage.gamma, 0.2);
  ASSERT_TRUE(advantage.kl.has_value() && advantage.kl_target.has_value());
  EXPECT_EQ(advantage.kl->estimator, algo::KlEstimator::kK2);
  EXPECT_EQ(advantage.kl->coef, 0.21);
  EXPECT_EQ(advantage.kl_target->kl, 0.22);
  EXPECT_EQ(advantage.kl_target->horizon, 5000);

  using Kind = algo::PolicyLossKind;
  const std::pair<const char*, Kind> losses[] = {
      {"vanilla", Kind::kPpoClip}, {"gspo", Kind::kGspo},     {"sequence_clip", Kind::kSequenceClip},
      {"cispo", Kind::kCispo},     {"gpg", Kind::kGpg},       {"clip_cov", Kind::kClipCov},
      {"kl_cov", Kind::kKlCov},    {"geo_mean", Kind::kGmpo}, {"sapo", Kind::kSapo},
      {"vespo", Kind::kVespo}};
  for (const auto& [name, kind] : losses) {
    ASSERT_EQ(load({std::string("actor.policy_loss.loss_mode=") + name, "actor.loss_agg_mode=seq-mean-token-mean"}),
              absl::OkStatus());
    EXPECT_EQ(actor.loss.kind, kind) << name;
  }
  using Estimator = AdvantageEstimator;
  const std::pair<const char*, Estimator> estimators[] = {
      {"grpo", Estimator::kGrpo}, {"grpo_passk", Estimator::kPassAtK},
      {"rloo", Estimator::kRloo}, {"opo", Estimator::kOpo},
      {"gpg", Estimator::kGpg},   {"reinforce_plus_plus_baseline", Estimator::kReinforcePlusPlusBaseline}};
  for (const auto& [name, estimator] : estimators) {
    ASSERT_EQ(load({std::string("algorithm.adv_estimator=") + name}), absl::OkStatus());
    EXPECT_EQ(algorithm.advantage.estimator, estimator) << name;
  }
  ASSERT_EQ(load({"actor.policy_loss.loss_mode=kl_cov", "actor.policy_loss.kl_cov_ratio=0.3",
                  "actor.policy_loss.ppo_kl_coef=0.31"}),
            absl::OkStatus());
  EXPECT_EQ(ObjectiveOptions(actor, algorithm, rollout).kl_cov_fraction, 0.3);
  EXPECT_EQ(actor.loss.cov_kl_coef, 0.31);
  ASSERT_EQ(load({"actor.policy_loss.loss_mode=sapo", "actor.tau_pos=1.5", "actor.tau_neg=1.6"}), absl::OkStatus());
  EXPECT_EQ(actor.loss.sapo_tau.positive, 1.5);
  EXPECT_EQ(actor.loss.sapo_tau.negative, 1.6);
  ASSERT_EQ(load({"actor.policy_loss.loss_mode=vespo", "actor.policy_loss.vespo_k_pos=1.1",
                  "actor.policy_loss.vespo_k_neg=1.2", "actor.policy_loss.vespo_lambda_pos=1.3",
                  "actor.policy_loss.vespo_lambda_neg=1.4"}),
            absl::OkStatus());
  EXPECT_EQ(actor.loss.vespo_k.positive, 1.1);
  EXPECT_EQ(actor.loss.vespo_k.negative, 1.2);
  EXPECT_EQ(actor.loss.vespo_lambda.positive, 1.3);
  EXPECT_EQ(actor.loss.vespo_lambda.negative, 1.4);
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
  EXPECT_THAT(RefusalOf({"actor.ptx_coef=1"}), Mentions({"actor.ptx_coef = ", "data.ptx_files"}));
  EXPECT_THAT(RefusalOf({"actor.ptx_coef=1", "data.ptx_files=" + folder + "/none.jsonl"}), Mentions({"none.jsonl"}));
}

TEST(ActorSection, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_THAT(RefusalOf({"actor.policy_loss.loss_mode=gspo"}), Mentions({"GSPO", "seq-mean-token-mean"}));
  EXPECT_THAT(RefusalOf({"actor.clip_ratio_c=0.5"}), Mentions({"dual_clip", "not 0.5"}));
  EXPECT_THAT(RefusalOf({"algorithm.adv_estimator=grpo_passk", "rollout.n=1"}),
              Mentions({"rollout.n = 1", "at least 2"}));
  EXPECT_THAT(RefusalOf({"actor.target_kl=0.1", "model.dropout=0.1"}),
              Mentions({"actor.target_kl = 0.1", "model.dropout = 0.1"}));
  EXPECT_THAT(
      RefusalOf({"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0"}),
      Mentions({"algorithm.kl_ctrl.kl_coef = ", "above 0"}));
  EXPECT_THAT(RefusalOf({"actor.policy_loss.loss_mode=clip_cov", "actor.policy_loss.clip_cov_ratio=0"}),
              Mentions({"actor.policy_loss.clip_cov_ratio: ", "number > 0"}));
  EXPECT_THAT(RefusalOf({"actor.policy_loss.loss_mode=gpg", "actor.clip_ratio_low=0.1"}),
              Mentions({"actor.clip_ratio_low: "}));
  EXPECT_THAT(RefusalOf({"actor.tau_pos=2"}), Mentions({"actor.tau_pos: ", "sapo"}));
  EXPECT_THAT(RefusalOf({"algorithm.kl_ctrl.kl_coef=1"}), Mentions({"algorithm.kl_ctrl.kl_coef: "}));
  EXPECT_THAT(
      RefusalOf({"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=5"}),
      Mentions({"algorithm.kl_ctrl.horizon = ", "above 6.4"}));
}

}  // namespace
}  // namespace tdock::trainer
