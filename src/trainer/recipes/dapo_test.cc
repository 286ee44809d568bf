// Runs that answer prompts until there are enough whose answers have different rewards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "tdock/local_dock.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTrainedModel[] = "checkpoint/model.safetensors";

// Likes answers that begin with certain digits.
class Liked final : public reward::Reward {
 public:
  explicit Liked(std::string digits = "01234") : digits_(std::move(digits)) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    ++calls;
    if (stop != nullptr && calls == stop_at) *stop = true;
    reward::Scores scores;
    for (const reward::Answer& answer : answers) {
      const bool liked = !answer.response.empty() && absl::StrContains(digits_, answer.response.substr(0, 1));
      scores.totals.push_back(liked ? 1.0F : 0.0F);
    }
    return scores;
  }

  std::atomic<int> calls = 0;
  int stop_at = 0;  // the call in which `stop` is set
  std::atomic<bool>* stop = nullptr;

 private:
  const std::string digits_;
};

// All that was logged of steps.
std::vector<json> Steps(const SmallRun& run) {
  std::vector<json> steps = run.Metrics();
  std::erase_if(steps, [](const json& record) { return record["step"] == 0; });
  return steps;
}

double SumOf(const std::vector<json>& steps, const std::string& figure) {
  double sum = 0;
  for (const json& step : steps) sum += step[figure].get<double>();
  return sum;
}

TEST(Dapo, LearnsWhatItsRewardLikes) {
  Liked reward("7");
  SmallRun run("dapo", {"trainer.total_training_steps=20", "actor.optim.lr=3e-3", "rollout.n=8",
                        "algorithm.filter_groups.max_num_gen_batches=0"});
  const auto result = run.Train({.reward = &reward});
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<json> steps = Steps(run);
  EXPECT_LT(steps.front()["critic/score/mean"].get<double>(), 0.3);
  EXPECT_GT(steps.back()["critic/score/mean"].get<double>(), 0.6);
}

TEST(Dapo, AStepTrainsOnAsManyPromptsAsItShouldAndOnlyOnThoseWhoseRewardsDiffer) {
  Liked reward;
  SmallRun run("dapo", {"data.gen_batch_size=5", "rollout.n=3", "trainer.total_training_steps=4"});
  const auto result = run.Train({.reward = &reward});
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<json> steps = Steps(run);
  ASSERT_EQ(steps.size(), 4u);
  double answered = 0;
  for (const json& step : steps) {
    const double rounds = step["sampling/rounds"], groups = step["sampling/groups"], surplus = step["sampling/surplus"];
    EXPECT_GE(rounds, 2);
    EXPECT_EQ(groups, 5 * rounds);
    EXPECT_EQ(step["sampling/kept"], 8.0);
    EXPECT_LT(surplus, 5) << "of the last round";
    EXPECT_NEAR(step["sampling/equal_share"].get<double>(), (groups - 8 - surplus) / groups, 1e-9);
    answered += 3 * groups;
    EXPECT_EQ(step["dock/completed/rollout"], answered);
    EXPECT_EQ(step["dock/completed/reward"], answered);
    EXPECT_EQ(step["dock/completed/dynamic_sampling"], answered);
    EXPECT_EQ(step["dock/completed/actor"], 24 * step["step"].get<double>());
    EXPECT_EQ(step["dock/rows"], 0.0);
    // Each group of three has a liked and another answer: with rewards of 0 and 1 the mean is 1/3 or 2/3.
    EXPECT_GE(step["critic/rewards/mean"].get<double>(), 1.0 / 3 - 1e-6);
    EXPECT_LE(step["critic/rewards/mean"].get<double>(), 2.0 / 3 + 1e-6);
    for (const char* stage : {"rollout", "reward", "dynamic_sampling", "advantage", "actor"}) {
      EXPECT_TRUE(step.contains(absl::StrCat("timing_s/", stage))) << stage;
    }
    EXPECT_FALSE(step.contains("timing_s/ref"));
    EXPECT_LE(step["actor/fresh_ratio_deviation"].get<double>(), 1e-5);
  }
  EXPECT_GT(SumOf(steps, "sampling/equal_share"), 0) << "some prompts of the test are left out";
}

TEST(Dapo, IsGrpoWithOtherDefaults) {
  Liked reward;
  SmallRun dapo("dapo"),
      grpo("grpo", {"actor.clip_ratio_high=0.28", "actor.kl_loss_coef=0", "algorithm.filter_groups.enable=true"});
  for (SmallRun* run : {&dapo, &grpo}) ASSERT_EQ(run->Train({.reward = &reward}).status(), absl::OkStatus());
  EXPECT_TRUE(dapo.File(kTrainedModel) == grpo.File(kTrainedModel));
  SmallRun unfiltered("dapo", {"algorithm.filter_groups.enable=false"});
  ASSERT_EQ(unfiltered.Train({.reward = &reward}).status(), absl::OkStatus());
  EXPECT_FALSE(unfiltered.Metrics()[1].contains("sampling/rounds"));
  EXPECT_FALSE(dapo.File(kTrainedModel) == unfiltered.File(kTrainedModel));
}

TEST(Dapo, TheBitsDependNeitherOnThreadsNorOnTheSizeOfRoundsThatLeaveNothingOver) {
  Liked reward;
  SmallRun first("dapo"), threads("dapo", {"threads=3"});
  for (SmallRun* run : {&first, &threads}) ASSERT_EQ(run->Train({.reward = &reward}).status(), absl::OkStatus());
  EXPECT_EQ(first.ReproducibleMetrics(), threads.ReproducibleMetrics());
  EXPECT_TRUE(first.File(kTrainedModel) == threads.File(kTrainedModel));
  // The first step trains on the same prompts whether they come one by one or not.
  SmallRun one("dapo", {"data.gen_batch_size=1", "trainer.total_training_steps=1",
                        "algorithm.filter_groups.max_num_gen_batches=0"}),
      all("dapo", {"trainer.total_training_steps=1"});
  for (SmallRun* run : {&one, &all}) ASSERT_EQ(run->Train({.reward = &reward}).status(), absl::OkStatus());
  EXPECT_EQ(Steps(one)[0]["sampling/surplus"], 0.0);
  EXPECT_TRUE(one.File(kTrainedModel) == all.File(kTrainedModel));
}

TEST(Dapo, IsConfiguredByTheNamesOfVerlAndOfMindSpeed) {
  const auto values = [](const std::string& yaml) {
    const std::string path = NewFolder() + "/run.yaml";
    EXPECT_EQ(WriteFileAtomically(Env::Real(), path, "recipe: dapo\nmodel.alphabet: ab\n" + yaml), absl::OkStatus());
    const auto recipe = LoadRecipe(Env::Real(), path, {});
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    config::Spec spec;
    (*recipe)->Bind(spec);
    return config::Values(spec);
  };
  const auto own = values(
      "reward.overlong_buffer: {enable: true, len: 64, penalty_factor: 0.5}\n"
      "algorithm.filter_groups: {enable: true, metric: score, max_num_gen_batches: 7}\n");
  EXPECT_EQ(values("reward_model: {overlong_buffer: {enable: true, len: 64, penalty_factor: 0.5}}\n"
                   "algorithm.filter_groups: {enable: true, metric: acc, max_num_gen_batches: 7}\n"),
            own);
  EXPECT_EQ(
      values("rl_config: {overlong_buffer_enable: true, overlong_buffer: 64, overlong_buffer_penalty_factor: 0.5, "
             "filter_groups_enable: true, filter_groups_max_batches: 7}\n"),
      own);
}

TEST(Dapo, TooManyRoundsEndTheRunSayingWhatWasLeftOut) {
  Liked nothing("none"), everything("0123456789>");
  SmallRun run("dapo", {"algorithm.filter_groups.max_num_gen_batches=3"});
  EXPECT_THAT(run.Train({.reward = &nothing}).status(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    {"dapo: step 1: 3 rounds", "(algorithm.filter_groups.max_num_gen_batches)", "0 of the 8 prompts",
                     "(data.train_batch_size)", "of 24 prompts, 24 had", "0 on average", "rollout.n"}));
  EXPECT_THAT(run.File("report.html"), HasSubstr("of 24 prompts, 24 had"));
  SmallRun never("dapo", {"algorithm.filter_groups.max_num_gen_batches=3", "data.gen_batch_size=2"});
  EXPECT_THAT(never.Train().status(),
              Fails(absl::StatusCode::kInvalidArgument,
                    {"algorithm.filter_groups.max_num_gen_batches", "3 rounds", "6 prompts", "the 8"}));
}

TEST(Dapo, TheEndOfTheDataEndsTheLastStepWithThePromptsThatItHas) {
  Liked reward("7");
  SmallRun run("dapo", {"trainer.total_epochs=1", "trainer.total_training_steps=0", "actor.optim.lr=1e-6",
                        "algorithm.filter_groups.max_num_gen_batches=0"});
  const auto result = run.Train({.reward = &reward});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->ended, HasSubstr("epoch 1"));
  EXPECT_TRUE(result->last.contains("val/accuracy")) << "it is validated at the end";
  const std::vector<json> steps = Steps(run);
  ASSERT_GE(steps.size(), 2u);
  EXPECT_EQ(SumOf(steps, "sampling/groups"), 80) << "each prompt is answered once";
  for (size_t i = 0; i + 1 < steps.size(); ++i) EXPECT_EQ(steps[i]["sampling/kept"], 8.0);
  EXPECT_EQ(steps.back()["dock/completed/actor"], 4 * SumOf(steps, "sampling/kept"));
  EXPECT_EQ(steps.back()["dock/rows"], 0.0);

  Liked nothing("none");  // so there is no prompt to train on
  SmallRun idle("dapo", {"trainer.total_epochs=1", "trainer.total_training_steps=0",
                         "algorithm.filter_groups.max_num_gen_batches=0"});
  const auto none = idle.Train({.reward = &nothing});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->steps, 1);
  EXPECT_EQ(Steps(idle)[0]["sampling/kept"], 0.0);
  EXPECT_EQ(Steps(idle)[0]["dock/completed/actor"], 0.0);
}

TEST(Dapo, WithOneAnswerToAPromptAllAreTrainedOn) {
  Liked reward("none");
  SmallRun run("dapo", {"rollout.n=1", "algorithm.adv_estimator=remax"});
  ASSERT_EQ(run.Train({.reward = &reward}).status(), absl::OkStatus());
  for (const json& step : Steps(run)) {
    EXPECT_EQ(step["sampling/rounds"], 1.0);
    EXPECT_EQ(step["sampling/equal_share"], 0.0);
    EXPECT_EQ(step["dock/completed/baseline"], 8 * step["step"].get<double>());
    EXPECT_EQ(step["reward_baseline/mean"], 0.0);
  }
}

TEST(Dapo, RewardsAreComparedBeforeOrAfterThePenaltyForLength) {
  const std::vector<std::string> overlong = {"reward.overlong_buffer.enable=true", "reward.overlong_buffer.len=4",
                                             "algorithm.filter_groups.max_num_gen_batches=2", "rollout.n=8"};
  Liked nothing("none");
  SmallRun by_score("dapo", overlong);
  EXPECT_THAT(by_score.Train({.reward = &nothing}).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"2 rounds"}));
  std::vector<std::string> with_penalty = overlong;
  with_penalty.emplace_back("algorithm.filter_groups.metric=reward");
  SmallRun by_reward("dapo", with_penalty);
  ASSERT_EQ(by_reward.Train({.reward = &nothing}).status(), absl::OkStatus());
  const json step = Steps(by_reward)[0];
  EXPECT_EQ(step["critic/score/mean"], 0.0);
  EXPECT_LT(step["overlong/penalty"].get<double>(), 0);
  EXPECT_GE(step["overlong/penalty"].get<double>(), -1);
  EXPECT_NEAR(step["critic/rewards/mean"].get<double>(), step["overlong/penalty"].get<double>(), 1e-6);
  EXPECT_GT(step["overlong/ratio"].get<double>(), 0);
}

TEST(Grpo, ThePenaltyForLengthIsTakenOffInTokensAndItsBufferIsPartOfAnAnswer) {
  SmallRun run("grpo", {"reward.overlong_buffer.enable=true", "reward.overlong_buffer.len=1",
                        "reward.overlong_buffer.penalty_factor=0.25"});
  ASSERT_EQ(run.Train().status(), absl::OkStatus());
  const json step = Steps(run)[0];
  // Only answers of all 5 tokens have the penalty, and all of it.
  EXPECT_NEAR(step["overlong/ratio"].get<double>(), step["response_length/clip_ratio"].get<double>(), 1e-9);
  EXPECT_NEAR(step["overlong/penalty"].get<double>(), -0.25 * step["overlong/ratio"].get<double>(), 1e-9);
  EXPECT_NEAR(step["critic/rewards/mean"].get<double>(),
              step["critic/score/mean"].get<double>() + step["overlong/penalty"].get<double>(), 1e-6);
  const std::string enable = "reward.overlong_buffer.enable=true";
  EXPECT_THAT(SmallRun("grpo", {enable}).Train().status(),
              Fails(absl::StatusCode::kInvalidArgument, {"set reward.overlong_buffer.len"}));
  EXPECT_THAT(
      SmallRun("grpo", {enable, "reward.overlong_buffer.len=5"}).Train().status(),
      Fails(absl::StatusCode::kInvalidArgument, {"reward.overlong_buffer.len = 5", "data.max_response_length = 5"}));
  EXPECT_THAT(SmallRun("grpo", {"reward.overlong_buffer.len=2"}).Train().status(),
              Fails(absl::StatusCode::kInvalidArgument, {"reward.overlong_buffer.enable"}));
}

TEST(Grpo, RemaxComparesWithTheLikeliestAnswer) {
  Liked reward;
  SmallRun run("grpo", {"algorithm.adv_estimator=remax", "rollout.n=2", "algorithm.use_kl_in_reward=true"});
  ASSERT_EQ(run.Train({.reward = &reward}).status(), absl::OkStatus());
  for (const json& step : Steps(run)) {
    EXPECT_EQ(step["dock/completed/baseline"], 16 * step["step"].get<double>());
    EXPECT_TRUE(step.contains("timing_s/baseline"));
    const double baseline = step["reward_baseline/mean"];
    EXPECT_GE(baseline, 0);
    EXPECT_LE(baseline, 1);
  }
  // Answers that are all as good as the likeliest one have no advantage.
  Liked everything("0123456789>");
  SmallRun same("grpo", {"algorithm.adv_estimator=remax", "reward.overlong_buffer.enable=false"});
  class One final : public reward::Reward {
    absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
      return reward::Scores{.totals = std::vector<float>(answers.size(), 1.0F), .parts = {}};
    }
  } one;
  ASSERT_EQ(same.Train({.reward = &one}).status(), absl::OkStatus());
  EXPECT_EQ(Steps(same)[0]["reward_baseline/mean"], 1.0);
  EXPECT_EQ(Steps(same)[0]["critic/advantages/max"], 0.0);
  EXPECT_EQ(Steps(same)[0]["critic/advantages/min"], 0.0);
}

TEST(Grpo, RemaxAsksTheRewardModelWhereThereIsOne) {
  SmallRun run("dapo", {"model.path=" + AnsweringModel(), "reward_model.model.path=" + ScoringModel(),
                        "algorithm.adv_estimator=remax", "algorithm.clip_score=0.5"});
  ASSERT_EQ(run.Train().status(), absl::OkStatus());
  double largest = 0;
  for (const json& step : Steps(run)) {
    EXPECT_EQ(step["sampling/kept"], 8.0);
    largest = std::max(largest, std::abs(step["reward_baseline/mean"].get<double>()));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(largest, 0.5);
}

TEST(Dapo, OnADockThatOthersShareItIsTheSameAndAStepThatIsStoppedIsCarriedOutAgain) {
  Liked reward;
  const std::vector<std::string> options = {"data.gen_batch_size=4", "trainer.peak_flops=1e12"};
  SmallRun own("dapo", options);
  ASSERT_EQ(own.Train({.reward = &reward}).status(), absl::OkStatus());
  for (const char* where : {"trainer.serve=unix", "trainer.dock=unix:/lent.sock"}) {
    std::vector<std::string> shared = options;
    shared.emplace_back(where);
    SmallRun run("dapo", shared);
    std::atomic<bool> stop = false;
    Liked stopping;
    stopping.stop = &stop;
    // The validation before, two or more rounds of the first step, and the first round of the second one.
    stopping.stop_at = 2 + static_cast<int>(Steps(own)[0]["sampling/rounds"].get<double>());
    const std::unique_ptr<Dock> first = MakeLocalDock(), second = MakeLocalDock();
    EXPECT_THAT(run.Train({.reward = &stopping, .stop = &stop, .open_shared_dock = LentDock::Of(*first)}).status(),
                Fails(absl::StatusCode::kCancelled, {"interrupted", "step 1", "saved in"}))
        << where;
    ASSERT_EQ(run.Train({.reward = &reward, .open_shared_dock = LentDock::Of(*second)}).status(), absl::OkStatus());
    EXPECT_TRUE(run.File(kTrainedModel) == own.File(kTrainedModel)) << where;
    const std::vector<std::string> left = *second->ListPartitions();
    EXPECT_EQ(left.empty(), std::string(where) != "trainer.serve=unix") << "a dock of others is left as it was";
  }
  SmallRun refused("dapo", {"trainer.serve=unix", "trainer.external_stages=reward"});
  EXPECT_THAT(refused.Train().status(),
              Fails(absl::StatusCode::kInvalidArgument, {"algorithm.filter_groups.enable", "trainer.external_stages"}));
  SmallRun compared("grpo", {"trainer.serve=unix", "trainer.external_stages=reward", "algorithm.adv_estimator=remax"});
  EXPECT_THAT(compared.Train().status(), Fails(absl::StatusCode::kInvalidArgument,
                                               {"algorithm.adv_estimator = remax", "trainer.external_stages"}));
}

TEST(Dapo, APartitionOfAnotherRunIsNotTouched) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_TRUE(dock->CreatePartition({.name = "train-sampling", .columns = {{"x", {}}}}).ok());
  SmallRun run("dapo", {"trainer.dock=unix:/lent.sock"});
  EXPECT_THAT(run.Train({.open_shared_dock = LentDock::Of(*dock)}).status(),
              Fails(absl::StatusCode::kAlreadyExists, {"'train-sampling'", "tdock dock drop train-sampling"}));
  EXPECT_THAT(*dock->ListPartitions(), testing::ElementsAre("train-sampling"));
}

}  // namespace
}  // namespace tdock::trainer
