// The stages of a step in turn and at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"
#include "trainer/recipes/testing/hang_clock.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/recipes/testing/told_recipe.h"
#include "trainer/recipes/testing/watched_dock.h"

namespace tdock::trainer {
namespace {

struct Case {
  const char* label;
  const char* recipe;
  std::vector<std::string> (*overrides)();
};

class Executors : public testing::TestWithParam<Case> {};

TEST_P(Executors, GiveTheSameWeightsToTheBit) {
  const auto train = [](const char* executor, int threads) {
    std::vector<std::string> overrides = GetParam().overrides();
    overrides.insert(overrides.end(), {absl::StrCat("trainer.executor=", executor), absl::StrCat("threads=", threads),
                                       "trainer.test_freq=0", "trainer.save_freq=0"});
    SmallRun run(GetParam().recipe, overrides);
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return run.File("checkpoint/model.safetensors");
  };
  const std::string in_turn = train("sequential", 2);
  EXPECT_TRUE(train("concurrent", 2) == in_turn);
  EXPECT_TRUE(train("concurrent", 1) == in_turn);
  EXPECT_TRUE(train("concurrent", 3) == in_turn);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Executors,
    testing::Values(
        Case{"sft", "sft", [] { return std::vector<std::string>(); }},
        Case{"dpo", "dpo", [] { return std::vector<std::string>(); }},
        Case{"grpo", "grpo",
             [] {
               return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false", "actor.ppo_epochs=2",
                                               "trainer.total_training_steps=6"};
             }},
        Case{"grpo_that_is_not_batch_invariant", "grpo",
             [] {
               return std::vector<std::string>{"model.batch_invariant=false", "actor.kl_loss_coef=0.1"};
             }},
        Case{"grpo_in_pieces", "grpo",
             [] {
               return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                               "trainer.dispatch_size.ref=12",
                                               "trainer.dispatch_size.reward=5",
                                               "trainer.dispatch_size.old_log_prob=8",
                                               "trainer.dispatch_size.rollout=16",
                                               "trainer.balance_batch=true"};
             }},
        Case{"grpo_in_order", "grpo",
             [] {
               return std::vector<std::string>{"model.batch_invariant=false", "trainer.dispatch_size.ref=12",
                                               "trainer.guarantee_order=true", "actor.kl_loss_coef=0.1"};
             }},
        Case{"dapo", "dapo", [] { return std::vector<std::string>{"algorithm.filter_groups.enable=false"}; }},
        Case{"ppo", "ppo",
             [] {
               return std::vector<std::string>{"model.path=" + AnsweringModel(), "critic.model.path=" + ScoringModel(),
                                               "reward_model.model.path=" + ScoringModel(), "actor.optim.lr=1e-5"};
             }}),
    [](const auto& a_case) { return a_case.param.label; });

// Scores all answers alike. Its first scores come once the rollout has answered the 64 samples of two steps.
class ScoresLate final : public reward::Reward {
 public:
  // The dock of a run.
  std::unique_ptr<Dock> MakeDock(Clock& clock) {
    auto dock = MakeLocalDock({.clock = &clock});
    dock_ = dock.get();
    return dock;
  }
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    if (!waited_.exchange(true)) {
      EXPECT_TRUE(Eventually([&] {
        const auto status = dock_->GetConsumerStatus("train", "rollout");
        return status.ok() && status->completed >= 64;
      }));
    }
    reward::Scores scores;
    scores.totals.assign(answers.size(), 0.5F);
    return scores;
  }

 private:
  Dock* dock_ = nullptr;
  std::atomic<bool> waited_ = false;
};

TEST(Asynchronous, SaysHowOldTheWeightsWereAndWhoWaited) {
  SmallRun run("grpo", {"async_training.steps_ahead=1", "trainer.total_training_steps=8", "trainer.test_freq=0",
                        "trainer.val_before_train=false", "algorithm.rollout_correction.rollout_is=token"});
  ScoresLate reward;
  SmallRun::Outside outside;
  outside.reward = &reward;
  outside.make_dock = [&](Clock& clock) { return reward.MakeDock(clock); };
  const auto result = run.Train(outside);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 8);
  const std::vector<nlohmann::json> metrics = run.Metrics();
  const nlohmann::json& last = metrics.back();
  // What is trained was answered during the step before it, of two optimizer steps, or after it.
  EXPECT_LE(last.at("async/staleness/max").get<double>(), 2);
  double oldest = 0;
  for (const nlohmann::json& step : metrics) oldest = std::max(oldest, step.value("async/staleness/max", 0.0));
  EXPECT_EQ(oldest, 2);
  for (const char* name : {"perf/idle_share/rollout", "perf/idle_share/reward", "rollout_corr/kl",
                           "rollout_corr/rollout_is_mean", "timing_s/rollout", "perf/waited_s/rollout"}) {
    EXPECT_TRUE(last.contains(name)) << name;
  }
  EXPECT_EQ(last.at("dock/completed/actor"), 8 * 8 * 4);
  EXPECT_THAT(run.File("timeline.jsonl"), testing::HasSubstr(R"("stage":"reward","what":"work")"));
}

TEST(Asynchronous, AStepThatIsStoppedAfterItHasTrainedTrainsOnce) {
  for (const int64_t step : {2, 4}) {  // in the middle, and the last
    SmallRun run("grpo", {"async_training.steps_ahead=1", "trainer.total_training_steps=4", "trainer.test_freq=1"});
    std::atomic<bool> stop = false;
    SmallRun::Outside outside;
    outside.stop = &stop;
    outside.wrap = [&](std::unique_ptr<Recipe> recipe) {
      return std::make_unique<ToldRecipe>(std::move(recipe), [&](const Stage& stage, int64_t of_stage) {
        if (stage.trains() && of_stage == step) stop = true;
      });
    };
    ASSERT_TRUE(absl::IsCancelled(run.Train(outside).status()));
    stop = false;
    outside.wrap = nullptr;
    const auto result = run.Train(outside);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->steps, 4);
    const std::vector<nlohmann::json> metrics = run.Metrics();
    EXPECT_EQ(metrics.back().at("dock/completed/actor"), 4 * 8 * 4);
    EXPECT_EQ(metrics.back().at("actor/optimizer_steps"), metrics[metrics.size() - 2].at("actor/optimizer_steps"));
  }
}

// Does not come back before it is let go, whatever it is told.
class HungReward final : public reward::Reward {
 public:
  explicit HungReward(HangClock& clock) : clock_(clock) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    if (hangs_) {
      EXPECT_TRUE(clock_.Hang()) << "it is not given up";
    }
    reward::Scores scores;
    scores.totals.assign(answers.size(), 0.5F);
    return scores;
  }
  void LetGo() {
    hangs_ = false;
    clock_.LetGo();
  }

 private:
  HangClock& clock_;
  std::atomic<bool> hangs_ = true;
};

TEST(AStageThatHangs, EndsTheRunWithItsNameAndItsRowsAndTheRunGoesOn) {
  for (const char* mode : {"trainer.executor=concurrent", "async_training.steps_ahead=1"}) {
    SmallRun run("grpo", {mode, absl::StrCat("trainer.stage_timeout=", HangClock::kPatience),
                          "trainer.val_before_train=false", "trainer.test_freq=0", "trainer.save_freq=1"});
    HangClock clock;
    HungReward reward(clock);
    Observer observer({.taken = [&] { clock.NoteWork(); }});
    absl::Status given_up;
    SmallRun::Outside outside{.clock = clock};
    outside.reward = &reward;
    outside.make_dock = [&](Clock& of_run) { return observer.Watch(MakeLocalDock({.clock = &of_run})); };
    outside.give_up = [&](const absl::Status& status) {
      given_up = status;
      reward.LetGo();
    };
    const auto result = run.Train(outside);
    EXPECT_THAT(result.status(), Fails(absl::StatusCode::kDeadlineExceeded, {"stage 'reward', ", "rows between"}))
        << mode;
    EXPECT_EQ(given_up.code(), absl::StatusCode::kDeadlineExceeded);
    const auto gone_on = run.Train(outside);
    EXPECT_TRUE(gone_on.ok()) << gone_on.status();
  }
}

TEST(Asynchronous, WhatCannotBeIsRefusedWithTheBound) {
  const auto refused = [](const std::vector<std::string>& overrides) {
    SmallRun run("grpo", overrides);
    const auto result = run.Train();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    return std::string(result.status().message());
  };
  EXPECT_THAT(refused({"async_training.steps_ahead=1", "async_training.max_version_lag=1"}),
              Mentions({"async_training.max_version_lag = 1", "2 optimizer steps", "at least 2"}));
  EXPECT_THAT(refused({"async_training.steps_ahead=1", "trainer.executor=sequential"}),
              Mentions({"async_training.steps_ahead = 1", "trainer.executor = sequential", "auto"}));
  EXPECT_THAT(refused({"async_training.steps_ahead=1", "trainer.serve=unix"}),
              Mentions({"async_training.steps_ahead = 1", "trainer.serve = unix"}));
  EXPECT_THAT(refused({"rollout.partial_rollout_max_split=6"}),
              Mentions({"rollout.partial_rollout_max_split = 6", "data.max_response_length = 5"}));
  EXPECT_THAT(refused({"trainer.dispatch_size.ref=6"}), Mentions({"trainer.dispatch_size.ref = 6", "rollout.n = 4"}));
  EXPECT_THAT(refused({"trainer.guarantee_order=true", "async_training.steps_ahead=1"}),
              Mentions({"trainer.guarantee_order = true", "async_training.steps_ahead = 1"}));
  EXPECT_THAT(refused({"async_training.max_version_lag=8"}),
              Mentions({"async_training.max_version_lag: ", "async_training.steps_ahead"}));
}

TEST(Asynchronous, RowsThatWereAnsweredAheadAreNotLeftBehind) {
  SmallRun run("grpo", {"async_training.steps_ahead=2", "trainer.total_training_steps=40",
                        "trainer.val_before_train=false", "trainer.test_freq=0"});
  std::atomic<bool> stop = false;
  ScoresLate reward;
  SmallRun::Outside outside;
  outside.reward = &reward;
  outside.make_dock = [&](Clock& clock) { return reward.MakeDock(clock); };
  outside.stop = &stop;
  outside.wrap = [&](std::unique_ptr<Recipe> recipe) {
    return std::make_unique<ToldRecipe>(std::move(recipe), [&](const Stage& stage, int64_t) {
      if (stage.trains()) stop = true;  // after the first step, while the second one's answers are there
    });
  };
  const auto stopped = run.Train(outside);
  ASSERT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  outside.wrap = nullptr;
  outside.reward = nullptr;
  outside.overrides = {"async_training.steps_ahead=0"};
  outside.allow_changed = {"async_training.steps_ahead"};
  stop = false;
  EXPECT_THAT(run.Train(outside).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"answered ahead", "async_training.steps_ahead"}));
  outside.overrides = {};
  outside.allow_changed = {};
  const auto gone_on = run.Train(outside);
  ASSERT_TRUE(gone_on.ok()) << gone_on.status();
  EXPECT_EQ(gone_on->steps, 40);
  EXPECT_EQ(run.Metrics().back().at("dock/completed/actor"), 40 * 8 * 4);
}

TEST(PartialRollout, AnswersAreGoneOnWithByTheNextWeights) {
  SmallRun run("grpo", {"rollout.partial_rollout_max_split=3", "trainer.total_training_steps=8", "trainer.test_freq=0",
                        "algorithm.rollout_correction.bypass_mode=false"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  double unfinished = 0, continued = 0, oldest = 0;
  for (const nlohmann::json& step : run.Metrics()) {
    unfinished += step.value("rollout/unfinished", 0.0);
    continued += step.value("rollout/continued", 0.0);
    oldest = std::max(oldest, step.value("async/staleness/max", 0.0));
    EXPECT_LE(step.value("response_length/max", 0.0), 5);
  }
  EXPECT_GT(unfinished, 0);
  EXPECT_GT(continued, 0);
  EXPECT_GT(oldest, 0) << "no answer was interrupted by a step";
}

TEST(PartialRollout, InTurnTheSameRunGivesTheSameWeights) {
  const auto train = [] {
    SmallRun run("grpo", {"rollout.partial_rollout_max_split=2", "trainer.test_freq=0"});
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return run.File("checkpoint/model.safetensors");
  };
  EXPECT_TRUE(train() == train());
}

}  // namespace
}  // namespace tdock::trainer
