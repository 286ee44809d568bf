#include "trainer/run_log/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "core/base/file_lock.h"
#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::Pair;

class RunSummaryTest : public testing::Test {
 protected:
  RunSummaryTest() {
    std::string path = testing::TempDir() + "/run_summary_test_XXXXXX";
    root_ = ::mkdtemp(path.data());
  }

  void Write(const std::string& name, absl::string_view text) {
    const std::string path = JoinPath(root_, name);
    ASSERT_TRUE(env_.CreateFolders(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(env_, path, text).ok());
  }

  void MakeRun(const std::string& name) {
    Write(name + "/config.yaml", "recipe: grpo\nseed: 3\ntrainer:\n  total_training_steps: 9\n  run_dir: x\n");
    ASSERT_TRUE(env_.CreateFolders(JoinPath(root_, name + "/tensorboard")).ok());
  }

  RunSummary Summarize(const std::string& name, uint64_t max_metrics_bytes = 1 << 20) {
    const auto summary = SummarizeRun(env_, JoinPath(root_, name), max_metrics_bytes);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary.value_or(RunSummary{});
  }

  Env& env_ = Env::Real();
  std::string root_;
};

TEST_F(RunSummaryTest, TellsTheStepsAndTheRangeOfEachMetric) {
  MakeRun("it");
  Write("it/metrics.jsonl",
        "{\"phase\":\"grpo\",\"step\":0,\"val/accuracy\":0.5,\"b\":null}\n"
        "{\"phase\":\"grpo\",\"step\":1,\"a\":-2,\"b\":1e999}\nno line\n"
        "{\"phase\":\"grpo\",\"step\":2,\"val/accuracy\":0.25,\"a\":3}\n{\"phase\":\"grpo\",\"step\":3");
  const RunSummary summary = Summarize("it");
  EXPECT_EQ(summary.recipe(), "grpo");
  EXPECT_THAT(summary.config, testing::IsSupersetOf({Pair("seed", "3"), Pair("trainer.total_training_steps", "9")}));
  EXPECT_EQ(summary.last_step, 2);
  ASSERT_EQ(summary.metrics.size(), 2);
  const MetricSummary& accuracy = summary.metrics.at("val/accuracy");
  EXPECT_EQ(accuracy.last, 0.25);
  EXPECT_EQ(accuracy.last_step, 2);
  EXPECT_EQ(accuracy.least, 0.25);
  EXPECT_EQ(accuracy.most, 0.5);
  EXPECT_EQ(BestOf("val/accuracy", accuracy), 0.5);
  EXPECT_EQ(BestOf("train/loss", accuracy), 0.25);
  EXPECT_EQ(BestOf("a", accuracy), std::nullopt);
}

TEST_F(RunSummaryTest, ReadsOnlyTheEndOfALongLog) {
  MakeRun("it");
  const std::string line = "{\"phase\":\"grpo\",\"step\":0,\"a\":5}\n";
  Write("it/metrics.jsonl", absl::StrCat(line, line, "{\"phase\":\"grpo\",\"step\":7,\"a\":6}\n"));
  EXPECT_EQ(Summarize("it", line.size()).metrics.at("a").least, 6);
  EXPECT_EQ(Summarize("it", line.size() + 1).metrics.at("a").least, 6);
  EXPECT_EQ(Summarize("it", 2 * line.size() + 1).metrics.at("a").least, 5);
  EXPECT_EQ(Summarize("it", 3).last_step, std::nullopt);
}

TEST_F(RunSummaryTest, TellsTheState) {
  MakeRun("it");
  EXPECT_EQ(ToText(Summarize("it").state), "failed");
  Write("it/checkpoints/.step-000001/state.json", "{}");
  EXPECT_EQ(ToText(Summarize("it").state), "failed");
  Write("it/checkpoints/step-000001/manifest.json", "{}");
  EXPECT_EQ(ToText(Summarize("it").state), "interrupted");
  Write("it/checkpoint/config.json", "{}");
  EXPECT_EQ(ToText(Summarize("it").state), "finished");
  auto lock = FileLock::Take(JoinPath(root_, "it/lock"), "a test");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(ToText(Summarize("it").state), "running");
  lock->reset();
  EXPECT_EQ(ToText(Summarize("it").state), "finished");
}

TEST_F(RunSummaryTest, RefusesWhatIsNoRun) {
  Write("config_only/config.yaml", "recipe: grpo\n");
  Write("other/config.yaml", "name: x\n");
  Write("no_yaml/config.yaml", "recipe: [\n");
  ASSERT_TRUE(env_.CreateFolders(root_ + "/no_yaml/tensorboard").ok());
  ASSERT_TRUE(env_.CreateFolders(root_ + "/other/tensorboard").ok());
  for (const char* name : {"config_only", "other", "no_yaml", "nothing"}) {
    EXPECT_FALSE(IsRun(env_, JoinPath(root_, name)));
    const auto summary = SummarizeRun(env_, JoinPath(root_, name), 1);
    EXPECT_THAT(summary.status(), Fails(absl::StatusCode::kNotFound, {JoinPath(root_, name)}));
  }
}

TEST_F(RunSummaryTest, FindsRunsInFoldersButNotInRuns) {
  MakeRun("b");
  MakeRun("a");
  MakeRun("a/inside");
  MakeRun("demo/sft");
  MakeRun("1/2/3");
  MakeRun("1/2/deep/er");
  Write("other/file", "");
  ASSERT_EQ(::symlink((root_ + "/a").c_str(), (root_ + "/link").c_str()), 0);
  const auto found = FindRuns(env_, root_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, ElementsAre(root_ + "/1/2/3", root_ + "/a", root_ + "/b", root_ + "/demo/sft"));
  EXPECT_EQ(FindRuns(env_, root_ + "/nothing").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RunSummaryTest, CountsTheBytesOfAllFilesOnce) {
  Write("it/a", "12345");
  Write("it/sub/b", "678");
  ASSERT_EQ(::symlink(root_.c_str(), (root_ + "/it/link").c_str()), 0);  // as long as its target's name
  const FolderUse use = MeasureFolder(root_ + "/it");
  EXPECT_EQ(use.bytes, 8 + root_.size());
  EXPECT_LT(use.changed, absl::Now() + absl::Hours(1));
  EXPECT_GT(use.changed, absl::Now() - absl::Hours(1));
  EXPECT_EQ(MeasureFolder(root_ + "/nothing").bytes, 0);
}

}  // namespace
}  // namespace tdock::trainer
