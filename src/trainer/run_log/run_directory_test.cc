#include "trainer/run_log/run_directory.h"
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/limited_env.h"
#include "nlohmann/json.hpp"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    std::string path = testing::TempDir() + "/run_directory_test_XXXXXX";
    root_ = ::mkdtemp(path.data());
  }

  std::unique_ptr<RunDirectory> Create(Env& env) {
    auto directory = RunDirectory::Create(env, clock_, root_ + "/runs/it");
    EXPECT_TRUE(directory.ok()) << directory.status();
    return *std::move(directory);
  }

  std::string Read(const std::string& name) {
    const auto contents = Env::Real().ReadFile(root_ + "/runs/it/" + name);
    EXPECT_TRUE(contents.ok()) << contents.status();
    return contents.value_or("");
  }

  // The lines that a newline closes.
  std::vector<std::string> Lines(const std::string& name) {
    std::vector<std::string> lines = absl::StrSplit(Read(name), '\n');
    lines.pop_back();
    return lines;
  }

  FakeClock clock_;
  std::string root_;
};

TEST_F(RunDirectoryTest, QuotesNames) {
  Env& env = Env::Real();
  const std::string folder = JoinPath(root_, kHostileText);
  const auto expect_quoted = [](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  };
  expect_quoted(RunDirectory::Open(env, clock_, folder, {}).status());
  expect_quoted(RunDirectory::CreateNext(env, clock_, root_, kHostileText).status());
  expect_quoted(RunDirectory::ReserveNext(env, root_, kHostileText).status());
  ASSERT_TRUE(env.CreateFolders(JoinPath(folder, kHostileText)).ok());
  expect_quoted(RunDirectory::Create(env, clock_, folder).status());
  const auto run = RunDirectory::Create(env, clock_, JoinPath(folder, "run"));
  ASSERT_TRUE(run.ok()) << run.status();
  expect_quoted((*run)->LogMetrics(kHostileText, 1, {{"a", 1}}));
  for (const char* name : {kHostileText, "a\u202e", "a\u200b", "a\xC2\x9B", "\xFF", ""}) {
    expect_quoted((*run)->LogMetrics("p", 1, {{name, 1}}));
  }
  ASSERT_TRUE((*run)->LogMetrics("p", 1, {{"é/😀", 1}, {"reward/a\\u200b \"b\"", 1}}).ok());
  expect_quoted((*run)->LogMetrics("p", 1, {{"a", 1}}));
  const auto lossy = RunDirectory::Open(env, clock_, JoinPath(folder, "run"), {{kHostileText, 5}});
  ASSERT_TRUE(lossy.ok()) << lossy.status();
  for (const std::string& loss : (*lossy)->TakeLosses()) {
    EXPECT_TRUE(IsSafeForTerminals(loss)) << EscapeForTerminal(loss);
  }
}

TEST_F(RunDirectoryTest, RefusesAFolderThatHoldsSomething) {
  Env& env = Env::Real();
  ASSERT_TRUE(Create(env)->WriteConfig("seed: 1\n").ok());
  EXPECT_EQ(Read("config.yaml"), "seed: 1\n");
  const auto again = RunDirectory::Create(env, clock_, root_ + "/runs/it");
  EXPECT_THAT(again.status(), Fails(absl::StatusCode::kAlreadyExists, {root_ + "/runs/it", "config.yaml"}));
  EXPECT_EQ(RunDirectory::Create(env, clock_, root_ + "/runs/it/config.yaml").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(RunDirectoryTest, TakesAnEmptyFolder) {
  ASSERT_TRUE(Env::Real().CreateFolders(root_ + "/runs/it").ok());
  EXPECT_EQ(Create(Env::Real())->checkpoint_path(), root_ + "/runs/it/checkpoint");
}

// A folder in which somebody else makes the same run directory right after it was looked at.
class RacingEnv final : public LimitedEnv {
 public:
  explicit RacingEnv(int races) : LimitedEnv(Env::Real(), 1'000'000), races_(races) {}
  absl::Status CreateNewFolder(const std::string& path) override {
    if (races_-- > 0) {
      EXPECT_TRUE(Env::Real().CreateNewFolder(path).ok());
    }
    return Env::Real().CreateNewFolder(path);
  }

 private:
  int races_;
};

TEST_F(RunDirectoryTest, OnlyOneOfTwoRunsGetsAnEmptyFolder) {
  RacingEnv env(1);
  EXPECT_EQ(RunDirectory::Create(env, clock_, root_ + "/runs/it").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RunDirectoryTest, TakesTheNextNumberWhereAnotherRunWasFaster) {
  RacingEnv env(2);
  const auto directory = RunDirectory::CreateNext(env, clock_, root_ + "/runs", "add");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ((*directory)->path(), root_ + "/runs/add-003");
}

TEST_F(RunDirectoryTest, NumbersRunsAfterTheHighestThatIsThere) {
  Env& env = Env::Real();
  const std::string runs = root_ + "/runs";
  const auto next = [&] { return (*RunDirectory::CreateNext(env, clock_, runs, "add"))->path(); };
  EXPECT_EQ(next(), runs + "/add-001");
  for (const char* name : {"add-007", "add-x", "add", "addition-900", "add-"}) {
    ASSERT_TRUE(env.CreateFolders(runs + "/" + name).ok());
  }
  EXPECT_EQ(next(), runs + "/add-008");
  ASSERT_TRUE(env.CreateFolders(runs + "/add-1234").ok());
  EXPECT_EQ(next(), runs + "/add-1235");
  EXPECT_EQ(RunDirectory::CreateNext(env, clock_, runs, "a/b").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunDirectoryTest, ReservesAFolderThatARunCanTake) {
  Env& env = Env::Real();
  const std::string runs = root_ + "/runs";
  const auto first = RunDirectory::ReserveNext(env, runs, "add"), second = RunDirectory::ReserveNext(env, runs, "add");
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(*first, runs + "/add-001");
  EXPECT_EQ(*second, runs + "/add-002");
  EXPECT_TRUE(RunDirectory::Create(env, clock_, *first).ok());
  EXPECT_EQ((*RunDirectory::CreateNext(env, clock_, runs, "add"))->path(), runs + "/add-003");
}

TEST_F(RunDirectoryTest, WritesOneLineForEachStep) {
  auto directory = Create(Env::Real());
  ASSERT_TRUE(directory->LogMetrics("sft", 1, {{"train/loss", 2.5}}).ok());
  ASSERT_TRUE(directory->LogMetrics("grpo", 2, {{"critic/score/mean", 0.1}, {"actor/lr", 4e-4}}).ok());
  EXPECT_THAT(Lines("metrics.jsonl"),
              ElementsAre(R"({"phase":"sft","step":1,"train/loss":2.5})",
                          R"({"phase":"grpo","step":2,"actor/lr":0.0004,"critic/score/mean":0.1})"));
  EXPECT_TRUE(directory->Sync().ok());
}

TEST_F(RunDirectoryTest, NumbersReadBackToTheSameBits) {
  std::vector<double> values = {0.0,
                                -0.0,
                                0.1,
                                1.0 / 3,
                                -1e300,
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::max(),
                                123456789012345678.0};
  Rng rng(5);
  while (values.size() < 2000) {
    const double value = std::bit_cast<double>(rng.Next());
    if (std::isfinite(value)) values.push_back(value);
  }
  auto directory = Create(Env::Real());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(directory->LogMetrics("p", static_cast<int64_t>(i), {{"x", values[i]}}).ok());
  }
  const std::vector<std::string> lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    // Through strtod, as any correct reader does.
    const double read = std::strtod(lines[i].c_str() + lines[i].rfind(':') + 1, nullptr);
    EXPECT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(values[i])) << lines[i];
  }
}

TEST_F(RunDirectoryTest, WritesNullForWhatIsNotFinite) {
  auto directory = Create(Env::Real());
  ASSERT_TRUE(directory->LogMetrics("p", 1, {{"a", std::nan("")}, {"b", -HUGE_VAL}, {"c", 1}}).ok());
  EXPECT_THAT(Lines("metrics.jsonl"), ElementsAre(R"({"phase":"p","step":1,"a":null,"b":null,"c":1.0})"));
}

TEST_F(RunDirectoryTest, RefusesNamesThatItCannotWrite) {
  auto directory = Create(Env::Real());
  for (const char* name : {"step", "phase", "", "a\nb", "\xff"}) {
    EXPECT_EQ(directory->LogMetrics("p", 1, {{name, 1}}).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  for (const char* phase : {"", "../x", "a b"}) {
    EXPECT_EQ(directory->LogMetrics(phase, 1, {{"x", 1}}).code(), absl::StatusCode::kInvalidArgument) << phase;
    EXPECT_EQ(directory->LogSamples(phase, 1, {}).code(), absl::StatusCode::kInvalidArgument) << phase;
  }
  EXPECT_THAT(*Env::Real().List(root_ + "/runs/it"), ElementsAre("tensorboard"));
}

TEST_F(RunDirectoryTest, WritesAnyTextAsOneLineOfUtf8) {
  auto directory = Create(Env::Real());
  const Answer answers[] = {
      {.prompt = "37+85=", .response = "221", .truth = "221", .reward = 1, .correct = true, .message = "judge: yes"},
      {.prompt = "\xe4\xbd\xa0\"\\", .response = std::string("a\nb\r\0\xff\xc3", 7), .truth = "", .reward = NAN}};
  ASSERT_TRUE(directory->LogSamples("grpo", 20, answers).ok());
  const std::vector<std::string> lines = Lines("samples.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(
      lines[0],
      R"({"phase":"grpo","step":20,"prompt":"37+85=","response":"221","truth":"221","reward":1.0,"correct":true,"message":"judge: yes"})");
  const Json second = Json::parse(lines[1]);
  EXPECT_EQ(second["prompt"], "\xe4\xbd\xa0\"\\");
  EXPECT_EQ(second["response"], std::string("a\nb\r\0\xef\xbf\xbd\xef\xbf\xbd", 11));
  EXPECT_TRUE(second["reward"].is_null());
}

TEST_F(RunDirectoryTest, KeepsEachPhaseAsARunOfItsOwnForTensorBoard) {
  auto directory = Create(Env::Real());
  ASSERT_TRUE(directory->LogMetrics("sft", 1, {{"timing_s/step", 1}}).ok());
  ASSERT_TRUE(directory->LogMetrics("grpo", 2, {{"timing_s/step", 1}}).ok());
  Env& env = Env::Real();
  EXPECT_THAT(*env.List(root_ + "/runs/it/tensorboard"), ElementsAre("grpo", "sft"));
  EXPECT_THAT(*env.List(root_ + "/runs/it/tensorboard/grpo"),
              ElementsAre(testing::StartsWith("events.out.tfevents.1000000000.")));
}

TEST_F(RunDirectoryTest, StepsIncreaseOverAllPhases) {
  auto directory = Create(Env::Real());
  ASSERT_TRUE(directory->LogMetrics("sft", 3, {{"x", 1}}).ok());
  const Answer answer = {.prompt = "a"};
  ASSERT_TRUE(directory->LogSamples("sft", 3, std::span(&answer, 1)).ok());
  for (const char* phase : {"sft", "grpo"}) {
    EXPECT_THAT(directory->LogMetrics(phase, 3, {{"x", 2}}),
                Fails(absl::StatusCode::kFailedPrecondition, {"step 3", phase, root_ + "/runs/it/metrics.jsonl"}));
    EXPECT_EQ(directory->LogMetrics(phase, 2, {}).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(directory->LogSamples(phase, 3, std::span(&answer, 1)).message(), HasSubstr("samples.jsonl"));
  }
  EXPECT_EQ(Lines("metrics.jsonl").size(), 1u);
  EXPECT_EQ(Lines("samples.jsonl").size(), 1u);
  EXPECT_THAT(*Env::Real().List(root_ + "/runs/it/tensorboard"), ElementsAre("sft"));
  EXPECT_TRUE(directory->LogMetrics("grpo", 4, {{"x", 2}}).ok()) << "a refusal is not a failed write";
}

TEST_F(RunDirectoryTest, AFullDiskLeavesTheLinesBeforeReadable) {
  const int64_t line_bytes = static_cast<int64_t>(std::string("{\"phase\":\"p\",\"step\":1,\"x\":0.5}\n").size());
  LimitedEnv env(Env::Real(), 1'000'000);
  auto directory = Create(env);
  ASSERT_TRUE(directory->LogMetrics("p", 1, {{"x", 0.5}}).ok());
  ASSERT_TRUE(directory->LogMetrics("p", 2, {{"x", 0.5}}).ok());
  env.SetLeft(line_bytes - 5);
  const absl::Status full = directory->LogMetrics("p", 3, {{"x", 0.5}});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("/runs/it/metrics.jsonl"));
  EXPECT_EQ(Lines("metrics.jsonl").size(), 2u);

  env.SetLeft(1'000'000);
  EXPECT_EQ(directory->LogMetrics("p", 4, {{"x", 0.5}}), full) << "nothing may follow a torn line";
  EXPECT_EQ(directory->LogMetrics("p", 3, {{"x", 0.5}}), full);
  EXPECT_EQ(Lines("metrics.jsonl").size(), 2u);
  ASSERT_TRUE(directory->WriteReport({.title = "it", .problem = std::string(full.message())}).ok());
  EXPECT_THAT(Read("report.html"), HasSubstr("No space left on device"));
  EXPECT_EQ(directory->Sync(), full);
}

TEST_F(RunDirectoryTest, AFullDiskKeepsTheOlderReport) {
  LimitedEnv env(Env::Real(), 1'000'000);
  auto directory = Create(env);
  ASSERT_TRUE(directory->WriteReport({.title = "older"}).ok());
  env.SetLeft(1000);
  const absl::Status full = directory->WriteReport({.title = "newer"});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("report.html"));
  EXPECT_EQ(Read("metrics.csv"), "step,phase\r\n");
  EXPECT_THAT(Read("report.html"), HasSubstr("older"));
  EXPECT_THAT(*Env::Real().List(root_ + "/runs/it"), ElementsAre("metrics.csv", "report.html", "tensorboard"));
}

TEST_F(RunDirectoryTest, AFolderThatIsRemovedIsMadeAgainAndSaid) {
  Env& env = Env::Real();
  const auto directory = Create(env);
  ASSERT_TRUE(directory->WriteConfig("seed: 1\n").ok());
  ASSERT_TRUE(directory->LogMetrics("p", 1, {{"x", 1}}).ok());
  EXPECT_THAT(directory->TakeLosses(), ElementsAre());
  ASSERT_TRUE(env.RemoveAll(root_ + "/runs").ok());
  ASSERT_TRUE(directory->LogMetrics("p", 2, {{"x", 1}}).ok());
  EXPECT_THAT(directory->TakeLosses(), ElementsAre(Mentions({root_ + "/runs/it was removed", "checkpoints"})));
  EXPECT_TRUE(directory->TakeRemade());
  EXPECT_FALSE(directory->TakeRemade());
  EXPECT_THAT(Lines("metrics.jsonl"), ElementsAre(HasSubstr("\"step\":2")));
  EXPECT_EQ(Read("config.yaml"), "seed: 1\n");
  EXPECT_EQ(env.List(root_ + "/runs/it/tensorboard/p")->size(), 1u);

  ASSERT_TRUE(env.RemoveAll(root_ + "/runs/it").ok());
  EXPECT_EQ(directory->Position()->size(), 0u);
  EXPECT_EQ(directory->TakeLosses().size(), 1u);
  ASSERT_TRUE(env.RemoveAll(root_ + "/runs/it").ok());
  EXPECT_TRUE(directory->WriteReport({.title = "it"}).ok());
  EXPECT_EQ(directory->TakeLosses().size(), 1u);
}

TEST_F(RunDirectoryTest, AFileThatIsRemovedBeginsAnewAndIsSaid) {
  Env& env = Env::Real();
  const auto directory = Create(env);
  ASSERT_TRUE(directory->LogMetrics("p", 1, {{"x", 1}}).ok());
  const std::string events = env.List(root_ + "/runs/it/tensorboard/p")->front();
  ASSERT_TRUE(env.Remove(root_ + "/runs/it/metrics.jsonl").ok());
  ASSERT_TRUE(env.Remove(root_ + "/runs/it/tensorboard/p/" + events).ok());
  ASSERT_TRUE(directory->LogMetrics("p", 2, {{"x", 1}}).ok());
  EXPECT_THAT(directory->TakeLosses(),
              ElementsAre(Mentions({"metrics.jsonl was removed", "step 2"}), Mentions({events, "removed"})));
  EXPECT_FALSE(directory->TakeRemade());
  EXPECT_THAT(Lines("metrics.jsonl"), ElementsAre(HasSubstr("\"step\":2")));
  ASSERT_TRUE(env.RemoveAll(root_ + "/runs/it/tensorboard").ok());
  ASSERT_TRUE(directory->LogMetrics("p", 3, {{"x", 1}}).ok());
  EXPECT_THAT(directory->TakeLosses(), ElementsAre(Mentions({"/tensorboard was removed"})));
  EXPECT_EQ(Lines("metrics.jsonl").size(), 2u);
}

// A file system that somebody has taken away.
class DetachedEnv final : public LimitedEnv {
 public:
  DetachedEnv() : LimitedEnv(Env::Real(), 1'000'000) {}
  absl::Status CreateFolders(const std::string& path) override {
    return is_gone ? absl::PermissionDeniedError(absl::StrCat("cannot create ", path))
                   : Env::Real().CreateFolders(path);
  }
  bool is_gone = false;
};

TEST_F(RunDirectoryTest, NothingIsLoggedWhileTheFolderCannotBeMadeAgain) {
  DetachedEnv env;
  const auto directory = Create(env);
  ASSERT_TRUE(directory->LogMetrics("p", 1, {{"x", 1}}).ok());
  ASSERT_TRUE(Env::Real().RemoveAll(root_ + "/runs").ok());
  env.is_gone = true;
  for (const int step : {2, 3}) {
    ASSERT_TRUE(directory->LogMetrics("p", step, {{"x", 1}}).ok());
    const Answer answer;
    ASSERT_TRUE(directory->LogSamples("p", step, std::span(&answer, 1)).ok());
  }
  EXPECT_THAT(directory->TakeLosses(), ElementsAre(Mentions({root_ + "/runs/it", "logged", "cannot create"})));
  EXPECT_EQ(directory->Position().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(directory->TakeRemade());
  env.is_gone = false;
  ASSERT_TRUE(directory->LogMetrics("p", 4, {{"x", 1}}).ok());
  EXPECT_TRUE(directory->TakeRemade());
  EXPECT_THAT(Lines("metrics.jsonl"), ElementsAre(HasSubstr("\"step\":4")));
}

TEST_F(RunDirectoryTest, TheReportShowsWhatTheFolderHolds) {
  auto directory = Create(Env::Real());
  ASSERT_TRUE(directory->WriteConfig("recipe: grpo\n").ok());
  ASSERT_TRUE(directory->LogMetrics("grpo", 1, {{"val/accuracy", 0.25}}).ok());
  const Answer answer = {.prompt = "1+1=", .response = "3", .truth = "2"};
  ASSERT_TRUE(directory->LogSamples("grpo", 1, std::span(&answer, 1)).ok());
  clock_.Advance(absl::Seconds(90));
  ASSERT_TRUE(directory->WriteReport({.title = "t", .facts = {{"seed", "1"}}, .earlier = absl::Seconds(10)}).ok());
  const std::string page = Read("report.html");
  EXPECT_EQ(Read("metrics.csv"), "step,phase,val/accuracy\r\n1,grpo,0.25\r\n");
  for (const char* part : {"recipe: grpo", "val/accuracy", "1+1=", "\"seconds\":100.0", R"(["seed","1"])"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

}  // namespace
}  // namespace tdock::trainer
