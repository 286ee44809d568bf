// Runs whose model talks with an environment while it answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

constexpr char kWeights[] = "checkpoint/model.safetensors";

// Two turns: the environment says "7" after the first answer. F in `before`, which is done before each answer to a
// message `m`, is a folder, and `turn` the number of the model's turns.
class TalkingRun {
 public:
  explicit TalkingRun(const std::string& before = "pass", std::vector<std::string> overrides = {},
                      const std::string& recipe = "grpo") {
    folder_ = NewFolder();
    const std::string path = folder_ + "/talk.py";
    EXPECT_EQ(WriteFileAtomically(Env::Real(), path,
                                  absl::StrCat(R"(
import json, os, sys, time
F = ')",
                                               folder_, R"(/'
def say(**message): print(json.dumps(message), flush=True)
json.loads(sys.stdin.readline())
say(type="hello", protocol=1, name="talk", kind="environment", episodes=4)
turns = {}
for line in sys.stdin:
    m = json.loads(line)
    episode, turn = m["episode"], turns.pop(m["episode"], 0)
    if m["type"] == "end": continue
    )",
                                               before, R"(
    if m["type"] == "reset":
        say(type="observation", episode=episode, messages=[], done=False)
    else:
        said = m["message"]["content"]
        seven = [{"role": "user", "content": "7"}] if turn == 0 else []
        rewards = {"odd": sum(c in "13579" for c in said) / 4, "turn": 0.5}
        say(type="observation", episode=episode, messages=seven, rewards=rewards, done=turn == 1)
        turns[episode] = turn + 1
)")),
              absl::OkStatus());
    for (const char* key : {"environment.format=text", "environment.tool_format=none", "environment.max_turns=3",
                            "data.max_response_length=9"}) {
      overrides.insert(overrides.begin(), key);
    }
    overrides.push_back("environment.program=python3 -S " + path);
    run_.emplace(recipe, overrides);
  }

  SmallRun& run() { return *run_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
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
      "    if n == 200: open(F + 'slow', 'w').close(); time.sleep(1000)");
  std::atomic<bool> stop = false;
  std::thread stopper([&] {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!Env::Real().Exists(slow.folder() + "/slow") && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
    stop = true;
  });
  const absl::Time begun = absl::Now();
  const absl::Status status = slow.run().Train({.stop = &stop}).status();
  stopper.join();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(25)) << "its time limit is 30 s";
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled, {"interrupted", "saved in"}));
  const auto result = slow.run().Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(slow.run().File(kWeights) == whole.run().File(kWeights));
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
  EXPECT_THAT(refused({"rollout.min_response_tokens=2"}), HasSubstr("set it to 0"));
  EXPECT_THAT(refused({"environment.max_turns=6"}), HasSubstr("lower environment.max_turns to 5"));
  EXPECT_THAT(refused({"environment.format=chat"}), HasSubstr("environment.format"));
}

}  // namespace
}  // namespace tdock::trainer
