// Runs whose dock other threads, in place of other processes, work on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

// A dock of this test's that a run is given as one that others have, too.
class Lent {
 public:
  Lent() : dock_(MakeLocalDock()) {}
  Dock& dock() { return *dock_; }
  OpenSharedDock open() { return LentDock::Of(*dock_); }

 private:
  const std::unique_ptr<Dock> dock_;
};

// Gives 1 to each right answer, as the rule `exact` does, until no more rows come, or `most` have. Returns how many
// rows it scored.
int64_t ScoreRows(Dock& dock, int64_t most = INT64_MAX) {
  int64_t scored = 0;
  while (scored < most) {
    const auto taken = dock.Take(
        {.partition = "train", .consumer = "reward", .min = 1, .max = 5, .deadline = absl::Now() + kPatience});
    if (absl::IsNotFound(taken.status())) {  // not yet
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    if (!taken.ok()) return absl::IsOutOfRange(taken.status()) ? scored : -1;
    std::vector<float> rewards;
    for (size_t i = 0; i < taken->rows.size(); ++i) {
      rewards.push_back(*taken->rows.Text(i, "response_text") == *taken->rows.Text(i, "truth") ? 1.0F : 0.0F);
    }
    Batch batch;
    EXPECT_TRUE(batch.Add("rewards", Column::FromValues(rewards)).ok());
    const std::vector<RowId> ids(taken->rows.ids().begin(), taken->rows.ids().end());
    EXPECT_TRUE(dock.Fill({.partition = "train", .batch = batch, .rows = ids, .lease = taken->lease}).ok());
    scored += static_cast<int64_t>(ids.size());
  }
  return scored;
}

// Waits until that many rows are ready for the reward stage.
void AwaitReady(Dock& dock, int64_t rows) {
  EXPECT_TRUE(Eventually([&] {
    const auto status = dock.GetConsumerStatus("train", "reward");
    return status.ok() && status->ready >= rows;
  }));
}

TEST(SharedDock, AStageOfAnotherProcessGivesTheSameMetricsBitForBit) {
  SmallRun own("grpo");
  ASSERT_TRUE(own.Train().ok());

  SmallRun run("grpo", {"trainer.serve=unix", "trainer.external_stages=reward"});
  Lent lent;
  int64_t scored = 0;
  std::thread other([&] { scored = ScoreRows(lent.dock()); });
  const auto result = run.Train({.open_shared_dock = lent.open()});
  other.join();  // by itself: the partition is sealed
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(scored, 3 * 32);

  const std::vector<json> records = run.ReproducibleMetrics();
  std::vector<json> expected = own.ReproducibleMetrics();
  for (json& record : expected) {  // the rules of the C++ stage are no longer asked, except for the validation
    record.erase("reward/exact/mean");
    record.erase("reward/exact/std");
    record.erase("reward/exact/undecided");
    record.erase("critic/score/at_max");  // nobody knows the bounds of others' rewards
    record.erase("critic/score/at_min");
  }
  EXPECT_EQ(records, expected);
  EXPECT_TRUE(records.back().contains("critic/score/mean"));
}

TEST(SharedDock, IsAnnouncedWhileTheRunLastsAndShowsTheVersionsOfTheWeights) {
  SmallRun run("grpo", {"trainer.serve=unix", "trainer.external_stages=[reward]"});
  Lent lent;
  std::string announced;
  int64_t version = kNoWeightsVersion;
  std::thread other([&] {
    ASSERT_TRUE(Eventually([&] { return Env::Real().Exists(run.run_dir() + "/dock.json"); }));
    announced = run.File("dock.json");
    ScoreRows(lent.dock());
    version = lent.dock().GetStatus("train")->weights_version;
  });
  const auto result = run.Train({.open_shared_dock = lent.open()});
  other.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(announced, "{\"address\":\"unix:/lent.sock\",\"partition\":\"train\"}\n");
  EXPECT_FALSE(Env::Real().Exists(run.run_dir() + "/dock.json"));
  EXPECT_EQ(version, 6);  // three steps, two updates each
  EXPECT_THAT(run.log(), Contains("warning: it is only lent"));
  EXPECT_THAT(run.log(), Contains(Mentions({"tdock dock status train --address unix:/lent.sock"})));
  EXPECT_THAT(run.log(),
              Contains(Mentions(
                  {"stage 'reward'", "prompt_text, truth, data_source, response_text, finished", "writes rewards"})));
}

TEST(SharedDock, ARunOnADockOfOthersLeavesNothingOnItAndAPartitionThatExistsIsRefused) {
  Lent lent;
  SmallRun first("sft", {"trainer.dock=unix:/lent.sock", "trainer.partition=mine"});
  ASSERT_TRUE(first.Train({.open_shared_dock = lent.open()}).ok());
  EXPECT_TRUE(lent.dock().ListPartitions()->empty());

  ASSERT_TRUE(lent.dock().CreatePartition({.name = "mine", .columns = {{"x", {}}}}).ok());
  SmallRun second("sft", {"trainer.dock=unix:/lent.sock", "trainer.partition=mine"});
  EXPECT_THAT(second.Train({.open_shared_dock = lent.open()}).status(),
              Fails(absl::StatusCode::kAlreadyExists,
                    {"trainer.partition", "'mine'", "0 rows", "tdock dock drop mine --yes --address unix:/lent.sock"}));
  EXPECT_FALSE(Env::Real().Exists(second.run_dir()));
  EXPECT_EQ(lent.dock().ListPartitions()->size(), 1u);
}

TEST(SharedDock, GroupsThatAnotherProcessDropsAreNotTrainedOn) {
  SmallRun run("grpo", {"trainer.serve=unix", "trainer.external_stages=reward", "trainer.total_training_steps=2"});
  Lent lent;
  std::thread other([&] {
    for (RowId first : {0, 32}) {  // the first group of each step
      const std::vector<RowId> group = {first, first + 1, first + 2, first + 3};
      AwaitReady(lent.dock(), 32);
      EXPECT_EQ(lent.dock().Drop({.partition = "train", .rows = group}), absl::OkStatus());
      if (first == 0) {
        EXPECT_EQ(ScoreRows(lent.dock(), 28), 28);
      }
    }
    EXPECT_EQ(ScoreRows(lent.dock()), 28);
  });
  const auto result = run.Train({.open_shared_dock = lent.open()});
  other.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(run.Metrics()[1]["dock/completed/actor"], 28.0);
  EXPECT_EQ(run.Metrics()[2]["dock/completed/actor"], 56.0);
}

TEST(SharedDock, AStageThatNobodyCarriesOutEndsTheRunNamingStepAndStage) {
  SmallRun run("grpo",
               {"trainer.dock=unix:/lent.sock", "trainer.external_stages=reward", "trainer.external_timeout=0.05"});
  Lent lent;
  const absl::Status status = run.Train({.open_shared_dock = lent.open()}).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kDeadlineExceeded,
                            {"grpo: step 1: stage 'reward': ", "rewards", "50ms", "0 of 32 rows"}));
  EXPECT_TRUE(lent.dock().ListPartitions()->empty());
  EXPECT_THAT(run.File("report.html"), HasSubstr("0 of 32 rows"));
}

TEST(SharedDock, ARunToldToStopWhileItWaitsForAnotherProcessEnds) {
  SmallRun run("grpo", {"trainer.serve=unix", "trainer.external_stages=reward"});
  Lent lent;
  std::atomic<bool> stop = false;
  std::thread other([&] {
    AwaitReady(lent.dock(), 1);
    stop = true;
  });
  const absl::Status status = run.Train({.stop = &stop, .open_shared_dock = lent.open()}).status();
  other.join();
  // The rows of step 1 are not saved: it is carried out again.
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled, {"interrupted", "step 0", "saved in"}));
}

TEST(SharedDock, WhatOtherProcessesCannotDoIsRefusedBeforeAnythingIsWritten) {
  const auto refused = [](const std::string& recipe, const std::vector<std::string>& overrides) {
    SmallRun run(recipe, overrides);
    Lent lent;
    const absl::Status status = run.Train({.open_shared_dock = lent.open()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_FALSE(Env::Real().Exists(run.run_dir())) << status;
    return std::string(status.message());
  };
  const std::string serve = "trainer.serve=unix";
  const std::string all_stages = "algorithm.rollout_correction.bypass_mode=false";
  EXPECT_THAT(refused("grpo", {serve, all_stages, "trainer.external_stages=rewards"}),
              Mentions({"trainer.external_stages: ", "'rewards'",
                        "rollout, reward, ref, old_log_prob, advantage, actor;", " reward, ref, advantage"}));
  for (const char* stage : {"rollout", "old_log_prob", "actor"}) {
    EXPECT_THAT(refused("grpo", {serve, all_stages, absl::StrCat("trainer.external_stages=[reward,", stage, "]")}),
                Mentions({absl::StrCat("stage '", stage, "'"), "weights"}));
  }
  EXPECT_THAT(refused("sft", {serve, "trainer.external_stages=reward"}),
              Mentions({"trainer.external_stages: ", "'reward'", " actor;", " none "}));
  EXPECT_THAT(refused("grpo", {"trainer.external_stages=reward"}),
              Mentions({"trainer.external_stages = ", "trainer.serve"}));
  EXPECT_THAT(refused("grpo", {serve, "trainer.dock=unix:/d"}), Mentions({"trainer.serve = unix", "trainer.dock = "}));
  EXPECT_THAT(refused("grpo", {"trainer.serve=unix:relative"}), Mentions({"trainer.serve = ", "unix:/PATH"}));
  EXPECT_THAT(refused("grpo", {"trainer.serve=yes"}), Mentions({"trainer.serve = ", "HOST:PORT"}));
  for (const char* address : {"foo", "unix", "unix:"}) {
    EXPECT_THAT(refused("grpo", {absl::StrCat("trainer.dock=", address)}),
                Mentions({"trainer.dock = ", "unix:/PATH", "HOST:PORT"}));
  }
  EXPECT_THAT(refused("grpo", {"trainer.dock_token_file=t"}), Mentions({"trainer.dock_token_file: ", "trainer.serve"}));
  EXPECT_THAT(refused("grpo", {serve, "trainer.dock_tls_cert=c"}),
              Mentions({"trainer.dock_tls_cert = c", "trainer.dock_tls_key"}));
}

}  // namespace
}  // namespace tdock::trainer
