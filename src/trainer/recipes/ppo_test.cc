#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::IsSupersetOf;

std::vector<std::string> Chain(std::vector<std::string> more = {}) {
  std::vector<std::string> overrides = {"model.path=" + AnsweringModel(), "critic.model.path=" + ScoringModel(),
                                        "reward_model.model.path=" + ScoringModel(), "critic.optim.lr=1e-3"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

TEST(Ppo, RaisesTheScoresOfTheRewardModel) {
  SmallRun run(
      "ppo", Chain({"trainer.total_training_steps=40", "actor.optim.lr=1e-3", "rollout.n=1", "data.train_batch_size=64",
                    "actor.ppo_mini_batch_size=32", "algorithm.kl_ctrl.kl_coef=0.02"}));
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<nlohmann::json> metrics = run.Metrics();
  double before = 0, after = 0;
  for (size_t i = 1; i <= 5; ++i) {
    before += metrics[i]["critic/score/mean"].get<double>() / 5;
    after += metrics[metrics.size() - i]["critic/score/mean"].get<double>() / 5;
  }
  EXPECT_GT(after, before + 0.5);
  std::vector<std::string> keys;
  for (const auto& [key, value] : metrics[1].items()) keys.push_back(key);
  EXPECT_THAT(keys, IsSupersetOf({"critic/vf_loss", "critic/vf_clipfrac", "critic/vf_explained_var", "critic/grad_norm",
                                  "critic/lr", "critic/values/mean", "critic/returns/mean", "critic/advantages/max",
                                  "actor/pg_loss", "actor/reward_kl_penalty", "actor/grad_norm", "timing_s/critic",
                                  "timing_s/values", "rollout/dropped_groups"}));
  EXPECT_EQ(metrics[1]["critic/optimizer_steps"], 2) << "two mini-batches";
  EXPECT_EQ(metrics[1]["actor/optimizer_steps"], 2);
  EXPECT_EQ(metrics[1]["actor/fresh_ratio_deviation"], 0) << "of fresh samples";
  const auto critic = nlohmann::json::parse(run.File("checkpoint-critic/config.json"));
  EXPECT_EQ(critic["architectures"][0], "LlamaForSequenceClassification");
}

TEST(Ppo, SaysHowOftenItsAnswersWin) {
  SmallRun run("ppo", Chain({"trainer.evaluations=[reward,win_rate]", "trainer.total_training_steps=60",
                             "actor.optim.lr=1e-3", "rollout.n=1", "data.train_batch_size=64",
                             "actor.ppo_mini_batch_size=32", "algorithm.kl_ctrl.kl_coef=0.02", "trainer.test_freq=0"}));
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_DOUBLE_EQ(result->first.at("val/win_rate"), 0.5) << "against itself";
  EXPECT_GT(result->last.at("val/win_rate"), 0.7);
  EXPECT_GT(result->last.at("val/score/mean"), result->last.at("val/reference_score/mean"));
  const auto evaluation = nlohmann::json::parse(run.File("evaluation.json"));
  EXPECT_EQ(evaluation["before"]["val/win_rate"], 0.5);
  EXPECT_EQ(evaluation["saved"]["val/score/mean"], evaluation["after"]["val/score/mean"]);
  SmallRun no_model("ppo", {"model.path=" + AnsweringModel(), "critic.model.path=" + AnsweringModel(),
                            "trainer.evaluations=[win_rate]"});
  EXPECT_THAT(std::string(no_model.Train().status().message()),
              Mentions({"trainer.evaluations = ", "reward_model.model.path", "win_rate"}));
}

TEST(Ppo, EndsOnceNothingIsAnsweredAnyMore) {
  SmallRun silent("ppo", Chain({"rollout.min_response_tokens=5"}));  // the longest possible answers
  EXPECT_THAT(std::string(silent.Train().status().message()), Mentions({"prompts", "5 tokens"}));
  SmallRun impossible("ppo", Chain({"rollout.min_response_tokens=6"}));
  EXPECT_THAT(std::string(impossible.Train().status().message()),
              Mentions({"rollout.min_response_tokens = 6", "data.max_response_length = 5"}));
}

TEST(Ppo, TrainsOnlyTheCriticWhileItWarmsUp) {
  SmallRun run("ppo", Chain({"trainer.critic_warmup=2"}));
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<nlohmann::json> metrics = run.Metrics();
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(metrics[step].contains("actor/grad_norm"), step == 3) << step;
    EXPECT_TRUE(metrics[step].contains("critic/grad_norm")) << step;
  }
}

TEST(Ppo, TakesLoraRecomputationAndALearningRateForEachRole) {
  SmallRun run("ppo", Chain({"model.lora_rank=4", "critic.model.lora_rank=2", "critic.model.recompute=layers",
                             "actor.optim.lr=1e-3", "critic.optim.lr=2e-3", "critic.optim.lora_lr=3e-3",
                             "actor.ppo_epochs=2", "critic.ppo_epochs=3", "algorithm.generation_batches=2"}));
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const nlohmann::json first = run.Metrics()[1];
  EXPECT_EQ(first["actor/lr"], 1e-3);
  EXPECT_EQ(first["critic/lr"], 2e-3);
  EXPECT_DOUBLE_EQ(first["critic/lora_lr"].get<double>(), 3e-3);
  EXPECT_EQ(first["actor/optimizer_steps"], 4) << "two generation batches, a mini-batch each, twice";
  EXPECT_EQ(first["critic/optimizer_steps"], 6) << "three times";
  EXPECT_TRUE(Env::Real().Exists(run.run_dir() + "/checkpoint-critic/adapter"));
}

TEST(Ppo, CriticBeginsFromALanguageModelWithAFreshHead) {
  SmallRun run("ppo", {"model.path=" + AnsweringModel(), "critic.model.path=" + AnsweringModel()});
  const auto result = run.Train();
  EXPECT_TRUE(result.ok()) << result.status();  // rewarded by the rules
}

TEST(Ppo, RefusesModelsThatCannotBeWhatTheyAreToBe) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return std::string(SmallRun("ppo", overrides).Train().status().message());
  };
  EXPECT_THAT(refusal({"model.path=" + AnsweringModel()}), Mentions({"critic.model.path"}));
  EXPECT_THAT(refusal({"model.path=" + AnsweringModel(), "critic.model.path=/nowhere"}),
              Mentions({"critic.model.path", "/nowhere"}));
  EXPECT_THAT(refusal(Chain({"reward_model.model.path=" + AnsweringModel()})),
              Mentions({"reward_model.model.path = " + AnsweringModel(), "language model"}));
  const std::string other = TrainedModel(
      "rm", {"model.alphabet=zyxwvutsrqponmlkjihgfedcba|_/9876543210><", "model.tie_word_embeddings=false"});
  EXPECT_THAT(refusal(Chain({"critic.model.path=" + other})),
              Mentions({"critic.model.path = " + other, "policy's tokens"}));
  const std::string larger = TrainedModel("rm", {"model.alphabet=0123456789>x"});
  std::filesystem::remove(larger + "/tokenizer.json");
  EXPECT_THAT(refusal(Chain({"reward_model.model.path=" + larger})),
              Mentions({"reward_model.model.path = " + larger, "no tokenizer"}));
  const std::string shorter = TrainedModel("rm", {"model.max_position_embeddings=12"});
  EXPECT_THAT(refusal(Chain({"critic.model.path=" + shorter})),
              Mentions({"critic.model.path = " + shorter, "12 positions"}));
}

TEST(Ppo, AnotherTokenizerReadsTheSameAnswers) {
  // Learns the same preferences through other numbers of the same characters.
  const std::string other =
      TrainedModel("rm", {"model.alphabet=zyxwvutsrqponmlkjihgfedcba|_/9876543210><", "trainer.total_training_steps=80",
                          "optim.lr=3e-3", "optim.weight_decay=0"});
  SmallRun run("ppo", Chain({"reward_model.model.path=" + other, "trainer.total_training_steps=40",
                             "actor.optim.lr=1e-3", "algorithm.kl_ctrl.kl_coef=0.02", "data.train_batch_size=16"}));
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(run.Metrics().back()["critic/score/mean"].get<double>(),
            run.Metrics()[1]["critic/score/mean"].get<double>());
}

}  // namespace
}  // namespace tdock::trainer
