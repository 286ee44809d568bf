// Runs that are stopped, or whose files fail, and go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <set>

#include "core/base/file_lock.h"
#include "core/base/mutex.h"
#include "core/base/testing/failing_env.h"
#include "core/base/testing/fails.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// Says that a run is to stop when it is asked for the time for the n-th time, which runs do at every place where they
// can stop.
class StoppingClock final : public Clock {
 public:
  explicit StoppingClock(int64_t calls) : left_(calls) {}
  const std::atomic<bool>* stop() const { return &stop_; }

  absl::Time Now() override {
    if (left_.fetch_sub(1) <= 0) stop_ = true;
    return Real().Now();
  }
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) { Real().Wait(cv, mu, deadline); }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    return Real().SetAlarm(at, std::move(call));
  }
  void CancelAlarm(const AlarmId& id) override { Real().CancelAlarm(id); }

 private:
  std::atomic<int64_t> left_;
  std::atomic<bool> stop_ = false;
};

std::vector<std::string> SftWithEverything() {
  return {"model.dropout=0.1", "trainer.ema_decay=0.9", "trainer.total_training_steps=7",
          "optim.lr=1e-2",     "trainer.save_freq=2",   "trainer.peak_flops=1e12"};
}

std::vector<std::string> GrpoWithEverything() {
  SmallRun base("sft");
  EXPECT_TRUE(base.Train().ok());
  return {"model.path=" + base.run_dir() + "/checkpoint",
          "model.lora_rank=4",
          "model.dropout=0.1",
          "actor.ppo_epochs=2",
          "trainer.ema_decay=0.9",
          "actor.optim.lr=1e-2",
          "trainer.total_training_steps=4",
          "algorithm.use_kl_in_reward=true",
          "algorithm.kl_ctrl.type=adaptive",
          "trainer.save_freq=2",
          "trainer.peak_flops=1e12"};
}

// ReMax, and rounds of which some leave prompts out.
std::vector<std::string> DapoWithEverything() {
  return {"data.gen_batch_size=5",           "trainer.total_training_steps=4",
          "algorithm.adv_estimator=remax",   "algorithm.use_kl_in_reward=true",
          "algorithm.kl_ctrl.type=adaptive", "reward.regex.weight=1",
          "reward.regex.pattern=^[0-4]",     "reward.overlong_buffer.enable=true",
          "reward.overlong_buffer.len=3",    "actor.optim.lr=1e-3",
          "trainer.ema_decay=0.9",           "trainer.save_freq=2",
          "trainer.peak_flops=1e12"};
}

std::vector<std::string> DpoWithEverything() {
  return {"model.path=" + AnsweringModel(), "model.lora_rank=4",   "trainer.ema_decay=0.9",  "optim.lr=1e-2",
          "trainer.total_training_steps=7", "trainer.save_freq=2", "trainer.peak_flops=1e12"};
}

std::vector<std::string> RmWithEverything() {
  return {"model.path=" + AnsweringModel(), "loss.type=every_token", "model.dropout=0.1",      "optim.lr=1e-2",
          "trainer.total_training_steps=7", "trainer.save_freq=2",   "trainer.peak_flops=1e12"};
}

std::vector<std::string> PpoWithEverything() {
  return {"model.path=" + AnsweringModel(),
          "critic.model.path=" + ScoringModel(),
          "reward_model.model.path=" + ScoringModel(),
          "trainer.evaluations=[reward,win_rate]",
          "critic.model.dropout=0.1",
          "critic.optim.lr=1e-2",
          "actor.ppo_epochs=2",
          "actor.optim.lr=1e-2",
          "algorithm.generation_batches=2",
          "algorithm.kl_ctrl.type=adaptive",
          "trainer.ema_decay=0.9",
          "trainer.critic_warmup=1",
          "trainer.total_training_steps=4",
          "trainer.save_freq=2",
          "trainer.peak_flops=1e12"};
}

std::string NewestCheckpoint(const SmallRun& run) {
  const CheckpointFolder folder(Env::Real(), run.run_dir() + "/checkpoints");
  const auto places = folder.List();
  return places.ok() && !places->empty() ? folder.PathOf(places->back()) : "";
}

std::vector<std::string> CheckpointNames(const SmallRun& run) {
  std::vector<std::string> names = *Env::Real().List(run.run_dir() + "/checkpoints");
  std::sort(names.begin(), names.end());
  return names;
}

// What must be the same, bit for bit, whether a run was stopped or not.
void ExpectSame(const SmallRun& run, const SmallRun& whole) {
  const auto metrics = run.ReproducibleMetrics(), expected = whole.ReproducibleMetrics();
  ASSERT_EQ(metrics.size(), expected.size());
  for (size_t i = 0; i < metrics.size(); ++i) EXPECT_EQ(nlohmann::json::diff(metrics[i], expected[i]).dump(), "[]");
  const std::string last = NewestCheckpoint(whole).substr(whole.run_dir().size() + 1);
  const std::string failure =
      absl::StrCat("warning: saving step ", std::stoi(last.substr(last.find("step-") + 5)), " ");
  const bool saving_failed = std::any_of(run.log().begin(), run.log().end(), [&failure](const std::string& line) {
    return absl::StartsWith(line, failure);
  });
  for (const std::string& file :
       {std::string("checkpoint/model.safetensors"), std::string("checkpoint-ema/model.safetensors"),
        std::string("checkpoint-critic/model.safetensors"), last + "/state.safetensors"}) {
    if (!Env::Real().Exists(whole.run_dir() + "/" + file)) continue;
    // The last checkpoint need not have been written, if the log says so. Other lines may follow: a notice of the stop
    // comes from a thread of its own.
    if (!Env::Real().Exists(run.run_dir() + "/" + file) && saving_failed) continue;
    EXPECT_TRUE(run.File(file) == whole.File(file)) << file;
  }
  if (Env::Real().Exists(whole.run_dir() + "/samples.jsonl")) {
    EXPECT_EQ(run.File("samples.jsonl"), whole.File("samples.jsonl"));
  }
}

struct Subject {
  std::string recipe;
  std::vector<std::string> (*overrides)();
};

class Stopped : public testing::TestWithParam<Subject> {};

TEST_P(Stopped, AnywhereGoesOnBitForBit) {
  const std::vector<std::string> overrides = GetParam().overrides();
  SmallRun whole(GetParam().recipe, overrides);
  const auto expected = whole.Train();
  ASSERT_TRUE(expected.ok()) << expected.status();
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same each time
  const auto inside = [](const std::string& place) { return place.find("-0", place.size() - 3) != std::string::npos; };
  // Where runs were stopped depends on the time that they take.
  std::set<std::string> places;
  for (int round = 0; round < 4 || (round < 40 && std::none_of(places.begin(), places.end(), inside)); ++round) {
    SmallRun run(GetParam().recipe, overrides);
    absl::StatusOr<RunResult> result = absl::CancelledError();
    while (absl::IsCancelled(result.status())) {
      StoppingClock clock(std::uniform_int_distribution(1, 120)(random));
      const bool begun = !NewestCheckpoint(run).empty();
      const char* const threads = begun && random() % 2 == 0 ? "threads=1" : "threads=2";
      result = run.Train({.stop = clock.stop(), .clock = clock, .overrides = {threads}});
      if (const std::string newest = NewestCheckpoint(run); !newest.empty()) {
        places.insert(newest.substr(run.run_dir().size()));
      }
    }
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->steps, expected->steps);
    EXPECT_EQ(result->first, expected->first);
    EXPECT_EQ(result->last, expected->last);
    ExpectSame(run, whole);
  }
  EXPECT_TRUE(std::any_of(places.begin(), places.end(), inside)) << testing::PrintToString(places);
  EXPECT_FALSE(std::all_of(places.begin(), places.end(), inside)) << testing::PrintToString(places);
}

INSTANTIATE_TEST_SUITE_P(Runs, Stopped,
                         testing::Values(Subject{"sft", SftWithEverything}, Subject{"grpo", GrpoWithEverything},
                                         Subject{"dapo", DapoWithEverything}, Subject{"rm", RmWithEverything},
                                         Subject{"dpo", DpoWithEverything}, Subject{"ppo", PpoWithEverything}),
                         [](const auto& subject) { return subject.param.recipe; });

TEST(Stopped, SaysWhereItWasSavedAndHowToGoOn) {
  SmallRun run("sft", {"trainer.total_training_steps=1000000", "trainer.max_minutes=0.01"});
  const absl::Status status = run.Train().status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kCancelled,
                            {"the time of trainer.max_minutes is over", "saved in " + NewestCheckpoint(run),
                             "To go on: tdock train " + run.run_dir() + "/config.yaml"}));
  EXPECT_THAT(run.File("report.html"), HasSubstr("max_minutes"));
}

TEST(Stopped, BeforeItsFirstStepLeavesNothingToGoOnFrom) {
  const std::atomic<bool> stop = true;
  SmallRun run("sft");
  EXPECT_THAT(run.Train({.stop = &stop}).status(), Fails(absl::StatusCode::kCancelled, {"before the first step"}));
  EXPECT_EQ(NewestCheckpoint(run), "");
  EXPECT_TRUE(run.Train().ok()) << "begins anew";
}

TEST(Saving, IsAskedForAtAnyTime) {
  std::atomic<bool> save = true;
  SmallRun run("sft", {"trainer.save_freq=0"});
  ASSERT_TRUE(run.Train({.save = &save}).ok());
  EXPECT_FALSE(save);
  EXPECT_THAT(CheckpointNames(run), ElementsAre("step-000000"));
}

TEST(Saving, KeepsTheNewestAndTheBest) {
  SmallRun run("sft", {"trainer.save_freq=1", "trainer.total_training_steps=6", "trainer.test_freq=1",
                       "trainer.max_checkpoints_to_keep=2", "trainer.best_metric=val/loss", "trainer.best_mode=max",
                       "optim.lr=1e-4"});
  ASSERT_TRUE(run.Train().ok());
  EXPECT_THAT(CheckpointNames(run),
              testing::AllOf(testing::SizeIs(3), Contains("step-000000"), Contains("step-000006")))
      << "the loss is greatest at first";
  SmallRun late("sft", {"trainer.best_metric=val/accuracy", "trainer.val_before_train=false"});
  EXPECT_TRUE(late.Train().ok()) << "what has been trained is worth more";
  SmallRun wrong("sft", {"trainer.best_metric=val/accuracy"});
  EXPECT_THAT(wrong.Train().status(),
              Fails(absl::StatusCode::kInvalidArgument, {"val/accuracy is not measured", "val/loss"}));
}

// A run of six steps, each saved, that is told to stop on the way.
std::vector<std::string> SavedOften() {
  return {"trainer.save_freq=1", "trainer.total_training_steps=6", "trainer.ema_decay=0.9"};
}

TEST(Saving, ThatFailsAnywhereLeavesTheLastCheckpointAndTheRunGoesOn) {
  SmallRun whole("sft", SavedOften());
  ASSERT_TRUE(whole.Train().ok());
  bool failed = true;
  int64_t warned = 0;
  // Each call fails once in `make nightly-train`.
  const int64_t stride = std::getenv("TDOCK_EVERY_CALL_FAILS") != nullptr ? 1 : 7;
  for (int64_t call = 0; failed; call += stride) {
    SmallRun run("sft", SavedOften());
    FailingEnv env(Env::Real(), call, "/checkpoints");
    StoppingClock clock(120);
    const auto stopped = run.Train({.env = env, .stop = clock.stop(), .clock = clock});
    failed = env.failed();
    if (!stopped.ok() && !absl::IsCancelled(stopped.status())) {
      EXPECT_THAT(std::string(stopped.status().message()), HasSubstr("the test says so"));
    }
    for (const std::string& line : run.log()) {
      if (!absl::StrContains(line, "the run goes on")) continue;
      ++warned;
      EXPECT_THAT(line, testing::ContainsRegex(
                            "warning: saving step . in .*/run/checkpoints, for which about 0.*GB are needed"));
    }
    const std::string newest = NewestCheckpoint(run);
    if (!newest.empty()) {
      EXPECT_TRUE(VerifyCheckpoint(Env::Real(), newest).ok()) << newest;
    }
    if (!stopped.ok()) {
      const auto rest = run.Train();
      ASSERT_TRUE(rest.ok()) << "after the failure of call " << call << ": " << rest.status();
    }
    ExpectSame(run, whole);
    for (const std::string& name : CheckpointNames(run)) EXPECT_EQ(name.front(), 's') << "unfinished: " << name;
  }
  EXPECT_GT(warned, 5);
}

// A run that has been stopped after some of its checkpoints.
struct StoppedRun {
  explicit StoppedRun(std::vector<std::string> overrides = {}) : run("sft", With(std::move(overrides))) {
    const auto result = run.Train();
    EXPECT_THAT(result.status(), Fails(absl::StatusCode::kCancelled, {"saved in"}));
  }
  static std::vector<std::string> With(std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"trainer.save_freq=1", "trainer.total_training_steps=100000", "trainer.max_minutes=0.004"});
    return overrides;
  }
  absl::Status GoOn(const std::vector<std::string>& overrides = {}, const std::vector<std::string>& allowed = {}) {
    std::vector<std::string> all = {"trainer.max_minutes=0.002"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return run.Train({.allow_changed = allowed, .overrides = all}).status();
  }
  SmallRun run;
};

TEST(GoingOn, WithSomethingElseIsRefusedByNameUnlessItIsAllowed) {
  StoppedRun stopped;
  EXPECT_THAT(stopped.GoOn({"optim.lr=1", "seed=7"}),
              Fails(absl::StatusCode::kFailedPrecondition,
                    {"optim.lr was 0.001 and is 1", "seed was 1 and is 7", "the model has changed",
                     "--allow-changed optim.lr --allow-changed seed"}));
  EXPECT_THAT(stopped.GoOn({"optim.lr=1"}, {"optim.lr"}), Fails(absl::StatusCode::kCancelled, {"saved in"}));
  EXPECT_THAT(stopped.GoOn({"threads=1", "trainer.save_freq=3"}),
              Fails(absl::StatusCode::kFailedPrecondition, {"optim.lr was 1"}))
      << "what is allowed once holds from then on";
  ASSERT_EQ(WriteFileAtomically(Env::Real(), stopped.run.folder() + "/train.jsonl", Reversals(true)), absl::OkStatus());
  EXPECT_THAT(stopped.GoOn({"optim.lr=1"}),
              Fails(absl::StatusCode::kFailedPrecondition, {"the data has changed", "--allow-changed data"}));
  EXPECT_THAT(stopped.GoOn({"optim.lr=1"}, {"data"}), Fails(absl::StatusCode::kCancelled, {"saved in"}));
  EXPECT_THAT(stopped.run.log(), Contains(HasSubstr("goes on with its beginning")));
}

TEST(GoingOn, FromADamagedCheckpointIsRefusedAndTheOneBeforeOffered) {
  StoppedRun stopped;
  const std::string newest = NewestCheckpoint(stopped.run);
  const CheckpointFolder folder(Env::Real(), stopped.run.run_dir() + "/checkpoints");
  const std::string before = folder.PathOf((*folder.List())[0]);
  const std::string file = newest + "/state.safetensors";
  const std::string bytes = *Env::Real().ReadFile(file);
  std::string changed = bytes;
  changed[bytes.size() / 2] ^= 1;
  for (const std::string& damaged :
       {bytes.substr(0, 100), changed, *Env::Real().ReadFile(before + "/model.safetensors")}) {
    ASSERT_EQ(WriteFileAtomically(Env::Real(), file, damaged), absl::OkStatus());
    EXPECT_THAT(stopped.GoOn(), Fails(absl::StatusCode::kDataLoss,
                                      {newest, "state.safetensors", "the one before: trainer.resume_mode=" + before}));
  }
  // Foreign: somebody else's manifest, and a newer version's.
  const std::string manifest = newest + "/manifest.json";
  std::string text = *Env::Real().ReadFile(manifest);
  ASSERT_EQ(WriteFileAtomically(Env::Real(), manifest, "{}"), absl::OkStatus());
  EXPECT_THAT(stopped.GoOn(), Fails(absl::StatusCode::kDataLoss, {manifest, before}));
  ASSERT_EQ(WriteFileAtomically(Env::Real(), manifest, text.replace(text.find("\"version\": 1"), 12, "\"version\": 9")),
            absl::OkStatus());
  EXPECT_THAT(stopped.GoOn(), Fails(absl::StatusCode::kFailedPrecondition, {manifest, "version 9", before}));

  EXPECT_THAT(stopped.GoOn({"trainer.resume_mode=" + before}), Fails(absl::StatusCode::kCancelled, {"saved in"}));
  EXPECT_THAT(stopped.run.log(), Contains(HasSubstr("going on from " + before)));
  EXPECT_THAT(stopped.GoOn(), Fails(absl::StatusCode::kCancelled, {"saved in"})) << "the damaged one is gone";
}

TEST(GoingOn, InAnotherFolderIsPossibleThereAtOnceAndBeyondTheEnd) {
  SmallRun run("sft", {"trainer.save_freq=2", "trainer.max_checkpoints_to_keep=0"});
  ASSERT_TRUE(run.Train().ok());
  const std::string branch = run.folder() + "/branch", last = NewestCheckpoint(run) + "/";
  const std::string more = "trainer.total_training_steps=6", there = "trainer.run_dir=" + branch;
  // Killed before it saves: the last call that fails is that of its first step.
  FailingEnv env(Env::Real(), 0, "/branch/metrics.jsonl");
  EXPECT_FALSE(run.Train({.env = env,
                          .allow_changed = {"trainer.total_training_steps"},
                          .overrides = {more, there, "trainer.resume_mode=" + last}})
                   .ok());
  const auto result = run.Train({.overrides = {more, there}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 6);
  EXPECT_THAT(run.log(), Contains(HasSubstr("going on from " + branch)));

  SmallRun whole("sft", {more});
  ASSERT_TRUE(whole.Train().ok());
  EXPECT_TRUE(*Env::Real().ReadFile(branch + "/checkpoint/model.safetensors") ==
              whole.File("checkpoint/model.safetensors"));
}

TEST(GoingOn, InTheMiddleOfAStepIsPossibleOnlyAsItWasBegun) {
  SmallRun run("grpo", {"trainer.peak_flops=1e12"});
  for (int calls = 1; !NewestCheckpoint(run).ends_with("-01"); ++calls) {
    ASSERT_TRUE(Env::Real().RemoveAll(run.run_dir()).ok());
    StoppingClock clock(calls * 10);
    EXPECT_TRUE(absl::IsCancelled(run.Train({.stop = clock.stop(), .clock = clock}).status()));
  }
  EXPECT_THAT(run.Train({.allow_changed = {"rollout.n"}, .overrides = {"rollout.n=2"}}).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"in the middle of a step", "rollout.n has changed"}));
  EXPECT_THAT(run.Train({.overrides = {"trainer.serve=unix"}}).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"in the middle of a step", "without trainer.serve"}));
  EXPECT_TRUE(run.Train({.allow_changed = {"actor.optim.lr"}, .overrides = {"actor.optim.lr=1e-5"}}).ok());
}

TEST(GoingOn, InAnotherFolderLeavesTheFirstRunAsItIs) {
  StoppedRun stopped;
  const std::string newest = NewestCheckpoint(stopped.run), metrics = stopped.run.File("metrics.jsonl");
  const std::string branch = stopped.run.folder() + "/branch";
  EXPECT_THAT(stopped.GoOn({"trainer.run_dir=" + branch, "trainer.resume_mode=resume_path",
                            "trainer.resume_from_path=" + newest}),
              Fails(absl::StatusCode::kCancelled, {"saved in " + branch}));
  EXPECT_EQ(NewestCheckpoint(stopped.run), newest);
  EXPECT_EQ(stopped.run.File("metrics.jsonl"), metrics);
  EXPECT_THAT(stopped.GoOn({"trainer.run_dir=" + branch, "trainer.resume_mode=" + newest}),
              Fails(absl::StatusCode::kAlreadyExists, {newest, "is not a checkpoint of the run in " + branch}));
}

// tests/data/checkpoint_1 is step 4 of this run, saved with trainer.save_freq=4 and trainer.max_checkpoints_to_keep=0.
TEST(GoingOn, FromACheckpointOfTheFirstVersionIsPossible) {
  SmallRun run("sft", {"model.hidden_size=8", "model.intermediate_size=8", "model.num_hidden_layers=1",
                       "trainer.total_training_steps=6", "trainer.ema_decay=0.9", "optim.lr=1e-2"});
  const auto result = run.Train({.overrides = {"trainer.resume_mode=tests/data/checkpoint_1"}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 6);
  EXPECT_EQ(run.Metrics().front()["step"], 5);
  EXPECT_NEAR(result->first.at("val/loss"), 2.5486261, 1e-6) << "as it was saved";
  EXPECT_NEAR(result->last.at("val/loss"), 2.4727016, 1e-4) << "as when it was not stopped";
}

TEST(GoingOn, HappensOnlyWhereItIsWantedAndOnce) {
  StoppedRun stopped;
  EXPECT_THAT(stopped.GoOn({"trainer.resume_mode=disable"}),
              Fails(absl::StatusCode::kAlreadyExists, {stopped.run.run_dir()}));
  {
    const auto lock = FileLock::Take(stopped.run.run_dir() + "/lock", "process 7 on another host");
    ASSERT_TRUE(lock.ok());
    EXPECT_THAT(stopped.GoOn(), Fails(absl::StatusCode::kAlreadyExists,
                                      {stopped.run.run_dir() + " is in use", "held by process 7 on another host"}));
  }
  SmallRun ended("sft");
  ASSERT_TRUE(ended.Train().ok());
  EXPECT_THAT(ended.Train().status(), Fails(absl::StatusCode::kAlreadyExists, {"has ended", ended.run_dir()}));
}

TEST(GoingOn, WithoutACheckpointBeginsTheSameRunAnewAndNoOther) {
  SmallRun run("sft", {"trainer.save_freq=0"});
  FailingEnv env(Env::Real(), 0, "/run/checkpoint/");
  EXPECT_FALSE(run.Train({.env = env}).ok());
  EXPECT_THAT(run.Train({.overrides = {"seed=2"}}).status(),
              Fails(absl::StatusCode::kAlreadyExists, {"another configuration", run.run_dir()}));
  ASSERT_TRUE(run.Train().ok());
  EXPECT_EQ(run.Metrics().size(), 4u);
}

}  // namespace
}  // namespace tdock::trainer
