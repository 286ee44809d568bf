// The stages of a step in turn and at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "trainer/recipes/testing/faulty_recipe.h"
#include "trainer/recipes/testing/small_run.h"

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

// Likes nothing, and takes its time.
class SlowReward final : public reward::Reward {
 public:
  explicit SlowReward(absl::Duration pause) : pause_(pause) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    absl::SleepFor(pause_);
    reward::Scores scores;
    scores.totals.assign(answers.size(), 0.5F);
    return scores;
  }

 private:
  const absl::Duration pause_;
};

TEST(Asynchronous, SaysHowOldTheWeightsWereAndWhoWaited) {
  SmallRun run("grpo", {"async_training.steps_ahead=1", "trainer.total_training_steps=8", "trainer.test_freq=0",
                        "algorithm.rollout_correction.rollout_is=token"});
  SlowReward reward(absl::Milliseconds(30));
  SmallRun::Outside outside;
  outside.reward = &reward;
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

// Asks the run to stop once a stage has trained in a step.
class StopsAfter final : public Stage {
 public:
  StopsAfter(std::unique_ptr<Stage> stage, int64_t step, std::atomic<bool>& stop)
      : stage_(std::move(stage)), step_(step), stop_(stop) {}
  const ConsumerOptions& consumer() const override { return stage_->consumer(); }
  bool uses_policy() const override { return stage_->uses_policy(); }
  Together together() const override { return stage_->together(); }
  bool trains() const override { return stage_->trains(); }
  void Save(State& state) const override { stage_->Save(state); }
  absl::Status Load(const State& state) override { return stage_->Load(state); }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    auto output = stage_->Run(rows, context);
    if (trains() && context.step == step_) stop_ = true;
    return output;
  }

 private:
  const std::unique_ptr<Stage> stage_;
  const int64_t step_;
  std::atomic<bool>& stop_;
};

class StoppedRecipe final : public FaultyRecipe {
 public:
  StoppedRecipe(std::unique_ptr<Recipe> recipe, Faults& faults, int64_t step, std::atomic<bool>& stop)
      : FaultyRecipe(std::move(recipe), faults), step_(step), stop_(stop) {}
  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    auto plan = FaultyRecipe::MakePlan(parts);
    if (!plan.ok()) return plan;
    for (auto& stage : plan->stages) stage = std::make_unique<StopsAfter>(std::move(stage), step_, stop_);
    return plan;
  }

 private:
  const int64_t step_;
  std::atomic<bool>& stop_;
};

TEST(Asynchronous, AStepThatIsStoppedAfterItHasTrainedTrainsOnce) {
  for (const int64_t step : {2, 4}) {  // in the middle, and the last
    SmallRun run("grpo", {"async_training.steps_ahead=1", "trainer.total_training_steps=4", "trainer.test_freq=1"});
    std::atomic<bool> stop = false;
    Faults none(0, 0);
    SmallRun::Outside outside;
    outside.stop = &stop;
    outside.wrap = [&](std::unique_ptr<Recipe> recipe) {
      return std::make_unique<StoppedRecipe>(std::move(recipe), none, step, stop);
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
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    while (hangs_) absl::SleepFor(absl::Milliseconds(1));
    reward::Scores scores;
    scores.totals.assign(answers.size(), 0.5F);
    return scores;
  }
  void LetGo() { hangs_ = false; }

 private:
  std::atomic<bool> hangs_ = true;
};

TEST(AStageThatHangs, EndsTheRunWithItsNameAndItsRowsAndTheRunGoesOn) {
  for (const char* mode : {"trainer.executor=concurrent", "async_training.steps_ahead=1"}) {
    SmallRun run("grpo", {mode, "trainer.stage_timeout=0.5", "trainer.val_before_train=false", "trainer.test_freq=0",
                          "trainer.save_freq=1"});
    HungReward reward;
    absl::Status given_up;
    SmallRun::Outside outside;
    outside.reward = &reward;
    outside.give_up = [&](const absl::Status& status) {
      given_up = status;
      reward.LetGo();
    };
    const auto result = run.Train(outside);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << mode << ": " << result.status();
    EXPECT_THAT(std::string(result.status().message()),
                testing::AllOf(testing::HasSubstr("stage 'reward', "), testing::HasSubstr("rows between"),
                               testing::HasSubstr("no sign of progress")));
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
              testing::AllOf(testing::HasSubstr("takes 2 optimizer steps"), testing::HasSubstr("at least 2")));
  EXPECT_THAT(refused({"async_training.steps_ahead=1", "trainer.executor=sequential"}),
              testing::HasSubstr("trainer.executor to auto"));
  EXPECT_THAT(refused({"async_training.steps_ahead=1", "trainer.serve=unix"}),
              testing::HasSubstr("on a dock of its own"));
  EXPECT_THAT(refused({"rollout.partial_rollout_max_split=6"}), testing::HasSubstr("more parts than"));
  EXPECT_THAT(refused({"trainer.dispatch_size.ref=6"}), testing::HasSubstr("a multiple of rollout.n"));
  EXPECT_THAT(refused({"trainer.guarantee_order=true", "async_training.steps_ahead=1"}),
              testing::HasSubstr("what is ready first"));
  EXPECT_THAT(refused({"async_training.max_version_lag=8"}), testing::HasSubstr("training is synchronous"));
}

// Asks the run to stop when it has scored a while.
class EndsTheRun final : public reward::Reward {
 public:
  explicit EndsTheRun(std::atomic<bool>& stop) : stop_(stop) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    scored_ += std::ssize(answers);
    if (scored_ > 100) stop_ = true;
    reward::Scores scores;
    scores.totals.assign(answers.size(), 0.5F);
    return scores;
  }

 private:
  std::atomic<bool>& stop_;
  int64_t scored_ = 0;
};

TEST(Asynchronous, RowsThatWereAnsweredAheadAreNotLeftBehind) {
  SmallRun run("grpo", {"async_training.steps_ahead=2", "trainer.total_training_steps=40"});
  std::atomic<bool> stop = false;
  EndsTheRun reward(stop);
  SmallRun::Outside outside;
  outside.reward = &reward;
  outside.stop = &stop;
  const auto stopped = run.Train(outside);
  ASSERT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  outside.overrides = {"async_training.steps_ahead=0"};
  outside.allow_changed = {"async_training.steps_ahead"};
  stop = false;
  EXPECT_THAT(std::string(run.Train(outside).status().message()), testing::HasSubstr("answered ahead of the step"));
  outside.overrides = {};
  outside.allow_changed = {};
  outside.reward = nullptr;
  stop = false;
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
