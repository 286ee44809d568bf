// Runs whose answers other programs score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

// Scores as the rule `exact` does, and is waited for as long as it takes; F in `before`, which is done before each
// sample `s`, is a folder.
class ProgramRun {
 public:
  explicit ProgramRun(const std::string& before = "pass", std::vector<std::string> overrides = {}) {
    folder_ = NewFolder();
    const std::string path = folder_ + "/score.py";
    EXPECT_EQ(WriteFileAtomically(Env::Real(), path,
                                  absl::StrCat(R"(
import json, os, sys, time
F = ')",
                                               folder_, R"(/'
json.loads(sys.stdin.readline())
print('{"type":"hello","protocol":1}', flush=True)
for line in sys.stdin:
    batch = json.loads(line)
    for s in batch["samples"]:
        )",
                                               before, R"(
        score = 1 if s["finished"] and s["completion"].strip() == s["truth"].strip() else 0
        with open(F + "asked", "a") as file: file.write(json.dumps(s) + "\n")
        print(json.dumps({"type": "scores", "batch": batch["batch"],
                          "scores": [{"sample": s["sample"], "score": score}]}), flush=True)
)")),
              absl::OkStatus());
    overrides.push_back("reward.program=python3 -S " + path);
    overrides.insert(overrides.end(), {"reward.timeout=86400", "reward.start_timeout=86400"});
    run_.emplace("grpo", overrides);
  }

  SmallRun& run() { return *run_; }
  const std::string& folder() const { return folder_; }
  std::vector<nlohmann::json> Asked() const {
    std::vector<nlohmann::json> samples;
    const std::string text = *Env::Real().ReadFile(folder_ + "/asked");
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      samples.push_back(nlohmann::json::parse(line));
    }
    return samples;
  }

 private:
  std::string folder_;
  std::optional<SmallRun> run_;
};

constexpr char kModel[] = "checkpoint/model.safetensors";

TEST(ExternalReward, AProgramTrainsAsTheRuleThatItImitates) {
  SmallRun by_rule("grpo", {"reward.exact.weight=1"});
  ASSERT_TRUE(by_rule.Train().ok());
  ProgramRun program("pass", {"reward.processes=2", "reward.batch_size=5"});
  const auto result = program.run().Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(program.run().File(kModel) == by_rule.File(kModel));
  const nlohmann::json last = program.run().Metrics().back();
  for (const char* figure : {"mean", "std", "failed", "seconds"}) {
    EXPECT_TRUE(last.contains(absl::StrCat("reward/python3/", figure))) << figure;
  }
  EXPECT_EQ(last["reward/python3/mean"], last["critic/score/mean"]);
}

TEST(ExternalReward, AStoppedRunKeepsItsScoresAndGoesOnToTheSameWeights) {
  ProgramRun whole;
  ASSERT_TRUE(whole.run().Train().ok());
  // Stands still once in the second step, behind the validation's 20 answers and the 32 of the first.
  ProgramRun slow(
      "n = int(open(F + 'n').read()) + 1 if os.path.exists(F + 'n') else 1; open(F + 'n', 'w').write(str(n))\n"
      "        if n == 80: open(F + 'slow', 'w').close(); time.sleep(3600)",
      {"reward.batch_size=4"});
  std::atomic<bool> stop = false;
  std::thread stopper([&] {
    EXPECT_TRUE(Eventually([&] { return Env::Real().Exists(slow.folder() + "/slow"); }));
    stop = true;
  });
  const absl::Status status = slow.run().Train({.stop = &stop}).status();
  stopper.join();
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled, {"interrupted", "saved in"}));
  const size_t before = slow.Asked().size();
  EXPECT_EQ(before, 79u);
  const auto result = slow.run().Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(slow.run().File(kModel) == whole.run().File(kModel));
  // No answer was scored again.
  EXPECT_EQ(slow.Asked().size(), whole.Asked().size());
  EXPECT_EQ(slow.run().Metrics().back()["critic/score/mean"], whole.run().Metrics().back()["critic/score/mean"]);
}

TEST(ExternalReward, ASampleWithoutAScoreEndsTheRunByName) {
  ProgramRun run("if s['truth'].startswith('0'): sys.exit('no zeros')", {"reward.retries=1"});
  const absl::Status status = run.run().Train().status();
  EXPECT_THAT(status.message(), Mentions({"reward python3", "prompt \"", "try 1:", "try 2:", "code 1", "no zeros"}));
  ProgramRun on("if s['truth'].startswith('0'): sys.exit('no zeros')",
                {"reward.retries=0", "reward.on_error=score", "reward.error_score=-1", "reward.max_restarts=1000",
                 "trainer.total_training_steps=1"});
  ASSERT_TRUE(on.run().Train().ok());
}

TEST(ExternalReward, ASampleWithoutAScoreCanLeaveTheStepWithItsPrompt) {
  // Of each prompt that is taken, some answer is scored before the one that fails.
  ProgramRun run(
      "if s['truth'][0] in '123' and s['sample'] % 4 == 3: time.sleep(0.3); sys.exit('not this one')",
      {"reward.retries=0", "reward.on_error=drop", "reward.max_restarts=1000", "rollout.n=4", "data.train_batch_size=8",
       "trainer.total_training_steps=2", "trainer.test_freq=0", "trainer.val_before_train=false"});
  const auto result = run.run().Train();
  ASSERT_TRUE(result.ok()) << result.status();
  double failed = 0;
  for (const nlohmann::json& line : run.run().Metrics()) {
    if (!line.contains("reward/python3/failed")) continue;
    failed += line["reward/python3/failed"].get<double>();
    EXPECT_GT(line["dock/completed/advantage"], 0);
  }
  EXPECT_GT(failed, 0);
  EXPECT_THAT(run.run().log(), testing::Contains(Mentions({"reward python3", "left out"})));
}

TEST(ExternalReward, AProgramGetsTheColumnsThatAreKept) {
  ProgramRun run("pass", {"data.keep=[answer]", "trainer.total_training_steps=1"});
  ASSERT_TRUE(run.run().Train().ok());
  const std::vector<nlohmann::json> asked = run.Asked();
  ASSERT_GE(asked.size(), 40u);
  for (const nlohmann::json& sample : {asked.front(), asked.back()}) {  // of the validation, and of a step
    EXPECT_EQ(sample["columns"]["answer"], sample["truth"]);
  }
}

}  // namespace
}  // namespace tdock::trainer
