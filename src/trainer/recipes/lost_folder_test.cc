// Runs whose folder somebody removes, cuts or takes away: what was trained is saved all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/recipes/testing/told_recipe.h"

namespace tdock::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

// Trains, and does `what` while a stage works in this step.
absl::StatusOr<RunResult> TrainAndDo(SmallRun& run, int64_t in_step, const std::function<void()>& what,
                                     Env& env = Env::Real()) {
  std::atomic<bool> done = false;
  const auto wrap = [&](std::unique_ptr<Recipe> recipe) -> std::unique_ptr<Recipe> {
    return std::make_unique<ToldRecipe>(std::move(recipe), [&](const Stage&, int64_t step) {
      if (step == in_step && !done.exchange(true)) what();
    });
  };
  return run.Train({.env = env, .wrap = wrap});
}

std::vector<int64_t> LoggedSteps(const SmallRun& run) {
  std::vector<int64_t> steps;
  for (const nlohmann::json& record : run.Metrics()) steps.push_back(record["step"].get<int64_t>());
  return steps;
}

const std::string& WholeWeights() {
  static const std::string* const weights = new std::string([] {
    SmallRun whole("sft");
    EXPECT_TRUE(whole.Train().ok());
    return whole.File("checkpoint/model.safetensors");
  }());
  return *weights;
}

TEST(LostFolder, IsMadeAgainAndHasTheModelAtTheEnd) {
  for (const int64_t step : {1, 2, 3}) {
    SmallRun run("sft", {"trainer.save_freq=1"});
    const auto result = TrainAndDo(run, step, [&] {
      // At once: a checkpoint may be being written.
      std::filesystem::rename(run.run_dir(), run.folder() + "/removed");
    });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->checkpoint, run.run_dir() + "/checkpoint");
    EXPECT_TRUE(run.File("checkpoint/model.safetensors") == WholeWeights()) << step;
    EXPECT_THAT(run.log(), Contains(Mentions({"warning: " + run.run_dir(), "removed", "checkpoints"})));
    EXPECT_EQ(LoggedSteps(run).front(), step);
    EXPECT_THAT(run.File("report.html"), testing::HasSubstr("was removed"));
    EXPECT_THAT(run.File("config.yaml"), testing::HasSubstr("sft"));
    const CheckpointFolder folder(Env::Real(), run.run_dir() + "/checkpoints");
    EXPECT_TRUE(VerifyCheckpoint(Env::Real(), folder.PathOf(folder.List()->back())).ok());
  }
}

TEST(LostFolder, ALogThatIsRemovedBeginsAnewAndTheRunGoesOn) {
  SmallRun run("sft");
  ASSERT_TRUE(TrainAndDo(run, 2, [&] { std::filesystem::remove(run.run_dir() + "/metrics.jsonl"); }).ok());
  EXPECT_THAT(LoggedSteps(run), ElementsAre(2, 3));
  EXPECT_THAT(run.log(), Contains(Mentions({"warning: ", "metrics.jsonl was removed", "step 2"})));
}

// Refuses to write below some folder, as one that is read-only, or on a disk that is gone.
class RefusingEnv final : public LimitedEnv {
 public:
  RefusingEnv() : LimitedEnv(Env::Real(), int64_t{1} << 40) {}

  void Refuse(std::string below) {
    below_ = std::move(below);
    refuses_ = true;
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override {
    TDOCK_RETURN_IF_ERROR(Check(path));
    return LimitedEnv::OpenForWriting(path, mode);
  }
  absl::Status CreateFolders(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check(path));
    return LimitedEnv::CreateFolders(path);
  }

 private:
  absl::Status Check(const std::string& path) const {
    const auto normal = [](const std::string& any) { return std::filesystem::path(any).lexically_normal().string(); };
    if (!refuses_ || !absl::StartsWith(normal(path), normal(below_))) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("cannot write ", path, ": the test says so"));
  }

  std::string below_;
  std::atomic<bool> refuses_ = false;
};

// The folders of the models that were saved elsewhere, in this one.
std::vector<std::string> RescuedIn(const std::string& folder) {
  std::vector<std::string> rescued;
  const std::vector<std::string> names = *Env::Real().List(folder);
  for (const std::string& name : names) {
    if (!absl::StrContains(name, "-rescued-")) continue;
    rescued.push_back(std::filesystem::path(JoinPath(folder, name)).lexically_normal());
  }
  return rescued;
}

TEST(LostFolder, WhereItCannotBeWrittenTheModelIsSavedBesideIt) {
  for (const bool removed : {false, true}) {
    SmallRun run("sft", {"trainer.ema_decay=0.9"});
    RefusingEnv env;
    const auto result = TrainAndDo(
        run, 2,
        [&] {
          if (removed) std::filesystem::remove_all(run.run_dir());
          env.Refuse(run.run_dir() + "/");
        },
        env);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(RescuedIn(run.folder()).size(), 2u) << "with the average of its weights";
    EXPECT_EQ(result->checkpoint, RescuedIn(run.folder())[0]);
    EXPECT_TRUE(*Env::Real().ReadFile(result->checkpoint + "/model.safetensors") == WholeWeights());
    EXPECT_THAT(run.log(), Contains(Mentions({"warning: ", result->checkpoint, run.run_dir(), "the test says so"})));
  }
}

TEST(LostFolder, WhereNothingBesideItCanBeWrittenTheModelIsSavedInTheWorkingFolder) {
  SmallRun run("sft");
  const std::filesystem::path before = std::filesystem::current_path();
  const std::string working = NewFolder();
  RefusingEnv env;
  absl::StatusOr<RunResult> result;
  std::filesystem::current_path(working);
  result = TrainAndDo(
      run, 2, [&] { env.Refuse(run.folder() + "/"); }, env);
  std::filesystem::current_path(before);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(RescuedIn(working),
              ElementsAre(std::filesystem::path(JoinPath(working, result->checkpoint)).lexically_normal().string()));
  EXPECT_TRUE(*Env::Real().ReadFile(working + "/" + result->checkpoint + "/model.safetensors") == WholeWeights());
  EXPECT_THAT(RescuedIn(run.folder()), ElementsAre());
}

TEST(LostFolder, WhereNothingCanBeWrittenTheErrorSaysWhatIsLost) {
  SmallRun run("sft", {"trainer.save_freq=1"});
  RefusingEnv env;
  const absl::Status status = TrainAndDo(
                                  run, 3, [&] { env.Refuse(""); }, env)
                                  .status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kPermissionDenied, {run.run_dir(), "lost"}));
}

TEST(LostFolder, ALogOfTheLastStepThatCannotBeWrittenLosesNoModel) {
  SmallRun run("sft");
  // Not by a call's number, which is another one on a slow machine: the disk is full, and no more when the model comes.
  class FullForLogs final : public LimitedEnv {
   public:
    FullForLogs() : LimitedEnv(Env::Real(), int64_t{1} << 40) {}
    absl::Status CreateFolders(const std::string& path) override {
      SetLeft(int64_t{1} << 40);
      return LimitedEnv::CreateFolders(path);
    }
  } env;
  const auto result = TrainAndDo(
      run, 3, [&] { env.SetLeft(10); }, env);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(run.File("checkpoint/model.safetensors") == WholeWeights());
  EXPECT_THAT(run.log(), Contains(Mentions({"warning: ", "last step", ".jsonl"})));
}

TEST(LostFolder, ALogThatCannotBeWrittenEndsTheRunAndItsWeightsAreSaved) {
  SmallRun run("sft", {"trainer.total_training_steps=100"});
  RefusingEnv env;
  const absl::Status status =
      TrainAndDo(
          run, 2,
          [&] {
            std::filesystem::remove(run.run_dir() + "/metrics.jsonl");  // so that it is to be opened
            env.Refuse(run.run_dir() + "/metrics.jsonl");
          },
          env)
          .status();
  ASSERT_EQ(RescuedIn(run.folder()).size(), 1u);
  EXPECT_THAT(status, Fails(absl::StatusCode::kPermissionDenied,
                            {"sft: step 2: ", "metrics.jsonl", "weights", "step 2", RescuedIn(run.folder())[0]}));
  EXPECT_TRUE(Env::Real().Exists(RescuedIn(run.folder())[0] + "/model.safetensors"));
}

// A run that was stopped, and has a checkpoint.
class LostLogs : public testing::Test {
 protected:
  LostLogs() : run_("sft", {"trainer.total_training_steps=4"}) {
    std::atomic<bool> stop = false;
    const auto wrap = [&](std::unique_ptr<Recipe> recipe) -> std::unique_ptr<Recipe> {
      return std::make_unique<ToldRecipe>(std::move(recipe), [&](const Stage&, int64_t step) { stop = step == 2; });
    };
    EXPECT_THAT(run_.Train({.stop = &stop, .wrap = wrap}).status(), Fails(absl::StatusCode::kCancelled, {"saved in"}));
  }
  std::string Path(const std::string& name) const { return run_.run_dir() + "/" + name; }

  SmallRun run_;
};

TEST_F(LostLogs, AreNamedAndTheRunGoesOnWithoutThem) {
  const std::string metrics = run_.File("metrics.jsonl");
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), Path("metrics.jsonl"), metrics.substr(0, metrics.size() - 7)).ok());
  std::filesystem::remove(Path("timeline.jsonl"));
  std::filesystem::remove_all(Path("tensorboard"));
  const auto result = run_.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(run_.log(), Contains(Mentions({"warning: ", "metrics.jsonl", "part of it is lost"})));
  EXPECT_THAT(run_.log(), Contains(Mentions({"warning: ", "/tensorboard is gone"})));
  const std::vector<int64_t> steps = LoggedSteps(run_);
  EXPECT_THAT(steps, Not(Contains(2)));
  EXPECT_EQ(steps.back(), 4);
  EXPECT_THAT(run_.File("report.html"), testing::HasSubstr("part of it is lost"));
}

TEST_F(LostLogs, OfAFolderThatHasOnlyItsCheckpointsAreNamed) {
  const std::vector<std::string> names = *Env::Real().List(run_.run_dir());
  for (const std::string& name : names) {
    if (name != "checkpoints") std::filesystem::remove_all(Path(name));
  }
  const auto result = run_.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(run_.log(), Contains(Mentions({"going on"})));
  EXPECT_THAT(run_.log(), Contains(Mentions({"warning: ", "metrics.jsonl is gone"})));
  EXPECT_EQ(LoggedSteps(run_).back(), 4);
}

}  // namespace
}  // namespace tdock::trainer
