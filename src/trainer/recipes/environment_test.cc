// Runs whose model talks with an environment while it answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/recipes/testing/talking_program.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

constexpr char kWeights[] = "checkpoint/model.safetensors";

// `before` and F in it are those of TalkingProgram().
class TalkingRun {
 public:
  explicit TalkingRun(const std::string& before = "pass", const std::vector<std::string>& more = {},
                      const std::string& recipe = "grpo")
      : folder_(NewFolder()) {
    std::vector<std::string> overrides = TalkingProgram(folder_, before);
    overrides.insert(overrides.end(), more.begin(), more.end());
    run_.emplace(recipe, overrides);
  }

  SmallRun& run() { return *run_; }
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
  std::optional<SmallRun> run_;
};

TEST(EnvironmentRun, ProgramsThatDieOnTheWayChangeNoWeight) {
  TalkingRun whole;
  const auto trained = whole.run().Train();
  ASSERT_TRUE(trained.ok()) << trained.status();
  const nlohmann::json last = whole.run().Metrics().back();
  for (const char* name : {"reward/odd/mean", "reward/turn/std", "critic/score/mean", "episode/turns",
                           "episode/truncated", "val/accuracy", "val/turns/mean", "timing_s/rollout"}) {
    EXPECT_TRUE(last.contains(name)) << name;
  }
  EXPECT_FALSE(last.contains("timing_s/reward")) << "there is no stage for it";
  TalkingRun dying("if os.urandom(1)[0] < 10: os._exit(3)",
                   {"environment.processes=2", "environment.max_restarts=1000", "environment.retries=40"});
  const auto other = dying.run().Train();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(dying.run().File(kWeights) == whole.run().File(kWeights));
  double failed = 0;
  for (const nlohmann::json& line : dying.run().Metrics()) failed += line.value("episode/failed_tries", 0.0);
  EXPECT_GT(failed, 0);
}

TEST(EnvironmentRun, StoppedWhileTheEnvironmentIsSilentItGoesOnToTheSameWeights) {
  TalkingRun whole;
  ASSERT_TRUE(whole.run().Train().ok());
  TalkingRun slow(
      "n = int(open(F + 'n').read()) + 1 if os.path.exists(F + 'n') else 1; open(F + 'n', 'w').write(str(n))\n"
      "    if n == 200: open(F + 'slow', 'w').close(); time.sleep(3600)");
  std::atomic<bool> stop = false;
  std::thread stopper([&] {
    EXPECT_TRUE(Eventually([&] { return Env::Real().Exists(slow.folder() + "/slow"); }));
    stop = true;
  });
  const absl::Status status = slow.run().Train({.stop = &stop}).status();
  stopper.join();
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled, {"interrupted", "saved in"}));
  const auto result = slow.run().Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(slow.run().File(kWeights) == whole.run().File(kWeights));
}

TEST(EnvironmentRun, EpisodesArePlayedWhileEarlierOnesAreTrainedOn) {
  for (const std::vector<std::string>& ahead :
       {std::vector<std::string>{"async_training.steps_ahead=1"},
        {"async_training.steps_ahead=3", "async_training.max_version_lag=2", "async_training.weights=wait"}}) {
    std::vector<std::string> overrides = {"algorithm.rollout_correction.bypass_mode=false", "trainer.test_freq=0",
                                          "trainer.total_training_steps=8"};
    overrides.insert(overrides.end(), ahead.begin(), ahead.end());
    TalkingRun talking("pass", overrides);
    const auto trained = talking.run().Train();
    ASSERT_TRUE(trained.ok()) << ahead[0] << ": " << trained.status();
    const std::vector<nlohmann::json> metrics = talking.run().Metrics();
    double oldest = 0, turns = 0;
    for (const nlohmann::json& step : metrics) {
      oldest = std::max(oldest, step.value("async/staleness/max", 0.0));
      turns = std::max(turns, step.value("episode/turns", 0.0));  // of those that were played since the last step
    }
    EXPECT_EQ(oldest, 2) << ahead[0] << ": versions of the step before, and no more";
    EXPECT_GT(turns, 1);
    EXPECT_EQ(metrics.back()["dock/completed/actor"], 8 * 8 * 4);
  }
}

TEST(EnvironmentRun, OtherRecipesPlayEpisodesToo) {
  const std::string model = "model.path=" + AnsweringModel(), critic = "critic.model.path=" + AnsweringModel();
  for (const auto& [recipe, more] :
       {std::pair("ppo", std::vector<std::string>{critic, "rollout.min_response_tokens=0"}),
        std::pair("dapo", std::vector<std::string>{})}) {
    std::vector<std::string> overrides = {model, "trainer.total_training_steps=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    TalkingRun talking("pass", overrides, recipe);
    const auto trained = talking.run().Train();
    ASSERT_TRUE(trained.ok()) << recipe << ": " << trained.status();
    EXPECT_GT(talking.run().Metrics().back()["episode/turns"], 0);
  }
}

TEST(EnvironmentRun, AnEpisodeThatFailsEndsTheRunByName) {
  TalkingRun failing("if turn == 1: say(type='observation', episode=episode, error='out of cards'); continue",
                     {"environment.retries=1", "trainer.val_before_train=false"});
  EXPECT_THAT(failing.run().Train().status().message(),
              testing::AllOf(HasSubstr("stage 'rollout'"), HasSubstr("prompt group"), HasSubstr("after 2 tries"),
                             HasSubstr("out of cards")));
}

TEST(EnvironmentRun, WhatCannotBeTogetherIsRefused) {
  const auto refused = [](const std::vector<std::string>& overrides) {
    TalkingRun run("pass", overrides);
    return std::string(run.run().Train().status().message());
  };
  EXPECT_THAT(refused({"reward.exact.weight=1"}), HasSubstr("the environment"));
  EXPECT_THAT(refused({"algorithm.adv_estimator=remax"}), HasSubstr("remax"));
  EXPECT_THAT(refused({"rollout.min_response_tokens=2"}), Mentions({"rollout.min_response_tokens = 2", "to 0"}));
  EXPECT_THAT(refused({"environment.max_turns=6"}), HasSubstr("lower environment.max_turns to 5"));
  EXPECT_THAT(refused({"environment.format=chat"}), HasSubstr("environment.format"));
  EXPECT_THAT(refused({"rollout.partial_rollout_max_split=3", "async_training.steps_ahead=1"}),
              Mentions({"rollout.partial_rollout_max_split = 3", "environment.max_turns"}));
}

}  // namespace
}  // namespace tdock::trainer
