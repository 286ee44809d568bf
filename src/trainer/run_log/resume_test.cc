// Run directories that another process goes on with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/limited_env.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() {
    std::string path = testing::TempDir() + "/resume_test_XXXXXX";
    run_ = absl::StrCat(::mkdtemp(path.data()), "/run");
  }

  std::unique_ptr<RunDirectory> Create() { return *RunDirectory::Create(Env::Real(), clock_, run_); }
  absl::StatusOr<std::unique_ptr<RunDirectory>> Open(const LogPosition& position, Env& env = Env::Real()) {
    return RunDirectory::Open(env, clock_, run_, position);
  }

  // A validation and a step.
  static void Log(RunDirectory& run, const std::string& phase, int64_t step) {
    const Answer answer = {.prompt = absl::StrCat("prompt ", step)};
    ASSERT_EQ(run.LogSamples(phase, step, std::span(&answer, 1)), absl::OkStatus());
    ASSERT_EQ(run.LogMetrics(phase, step, {{"x", static_cast<double>(step)}}), absl::OkStatus());
  }

  std::string Read(const std::string& name) { return Env::Real().ReadFile(run_ + "/" + name).value_or("(none)"); }
  std::vector<std::string> List(const std::string& folder) { return *Env::Real().List(run_ + "/" + folder); }

  // The steps in a log, in its order.
  std::vector<int64_t> Steps(const std::string& name) {
    std::vector<int64_t> steps;
    const std::string contents = Read(name);
    EXPECT_TRUE(contents.empty() || contents.back() == '\n') << contents;
    for (absl::string_view line : absl::StrSplit(contents, '\n', absl::SkipEmpty())) {
      steps.push_back(std::stoll(std::string(line.substr(line.find("\"step\":") + 7))));
    }
    return steps;
  }

  FakeClock clock_;
  std::string run_;
};

TEST_F(ResumeTest, EveryStepIsInTheLogsOnce) {
  LogPosition position;
  {
    const auto first = Create();
    for (int step = 0; step <= 2; ++step) Log(*first, "sft", step);
    position = *first->Position();
    for (int step = 3; step <= 5; ++step) Log(*first, step < 5 ? "sft" : "grpo", step);
  }
  const std::string kept = Read("metrics.jsonl").substr(0, position.at("metrics.jsonl"));
  const std::string events = "tensorboard/sft/" + List("tensorboard/sft").front();
  const auto second = Open(position);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(Read("metrics.jsonl"), kept);
  EXPECT_EQ(Read(events).size(), position.at(events));
  EXPECT_EQ(Read("tensorboard/grpo/" + List("tensorboard/grpo").front()), "") << "its steps are to be taken again";
  EXPECT_THAT((*second)->LogMetrics("sft", 2, {}).message(), HasSubstr("step 2 of sft cannot follow step 2"));
  EXPECT_EQ((*second)->LogSamples("sft", 2, std::vector<Answer>(1)).code(), absl::StatusCode::kFailedPrecondition);

  for (int step = 3; step <= 6; ++step) Log(**second, step < 6 ? "sft" : "grpo", step);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Steps("samples.jsonl"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(List("tensorboard/sft").size(), 2u);
  EXPECT_EQ(List("tensorboard/grpo").size(), 2u);
  EXPECT_EQ(Read(events).size(), position.at(events)) << "a new file goes on with it";
}

TEST_F(ResumeTest, APositionAfterAResumeIsAPositionToo) {
  const auto first = Create();
  Log(*first, "p", 1);
  const LogPosition early = *first->Position();
  const auto second = *Open(early);
  Log(*second, "p", 2);
  const LogPosition late = *second->Position();
  EXPECT_EQ(late.size(), 4u) << "two event files";
  Log(*second, "p", 3);

  Log(**Open(late), "p", 3);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1, 2, 3));
  EXPECT_EQ(List("tensorboard/p").size(), 3u);
  Log(**Open(early), "p", 2);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1, 2));
}

TEST_F(ResumeTest, WithAnEmptyPositionTheLogsBeginAnew) {
  {
    const auto first = Create();
    ASSERT_TRUE(first->WriteConfig("seed: 1\n").ok());
    EXPECT_EQ(*first->Position(), LogPosition());
    Log(*first, "p", 7);
  }
  const auto second = Open({});
  ASSERT_TRUE(second.ok()) << second.status();
  for (const char* name : {"metrics.jsonl", "samples.jsonl"}) EXPECT_EQ(Read(name), "") << name;
  Log(**second, "p", 1);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1));
}

TEST_F(ResumeTest, ALogThatIsShorterThanItsPositionIsALossAndGoesOn) {
  const auto first = Create();
  Log(*first, "p", 1);
  const LogPosition position = *first->Position();
  for (const auto& [name, bytes] : position) {
    LogPosition wrong = position;
    wrong[name] += 1000;
    const auto second = Open(wrong);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_THAT((*second)->TakeLosses(),
                ElementsAre(Mentions({name, absl::StrCat(bytes), absl::StrCat(bytes + 1000)})));
    EXPECT_EQ(Read(name).size(), bytes);
  }
  LogPosition other = position;
  other["tensorboard/q/events.out.tfevents.1.host"] = 5;
  const auto second = *Open(other);
  EXPECT_THAT(second->TakeLosses(), ElementsAre(Mentions({"tensorboard/q/events.out.tfevents.1.host is gone", "5"})));
  EXPECT_THAT(second->TakeLosses(), ElementsAre());
  Log(*second, "p", 2);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1, 2));
  EXPECT_THAT((*Open(position))->TakeLosses(), ElementsAre());
}

TEST_F(ResumeTest, ALogThatIsCutOrGoneGoesOnBehindItsWholeLines) {
  LogPosition position;
  {
    const auto first = Create();
    for (int step = 1; step <= 3; ++step) Log(*first, "p", step);
    position = *first->Position();
  }
  const std::string metrics = Read("metrics.jsonl");
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), run_ + "/metrics.jsonl", metrics.substr(0, metrics.size() - 5)).ok());
  ASSERT_TRUE(Env::Real().Remove(run_ + "/samples.jsonl").ok());
  const auto second = Open(position);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT((*second)->TakeLosses(),
              ElementsAre(Mentions({"samples.jsonl is gone"}), Mentions({"metrics.jsonl", "part of it is lost"})));
  Log(**second, "p", 4);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1, 2, 4));
  EXPECT_THAT(Steps("samples.jsonl"), ElementsAre(4));

  position = *(*second)->Position();
  ASSERT_TRUE(Env::Real().RemoveAll(run_ + "/tensorboard").ok());
  ASSERT_TRUE(Env::Real().Remove(run_ + "/metrics.jsonl").ok());
  const auto third = Open(position);
  ASSERT_TRUE(third.ok()) << third.status();
  const std::vector<std::string> losses = (*third)->TakeLosses();
  EXPECT_THAT(losses, testing::Contains(HasSubstr("/tensorboard is gone")));
  EXPECT_THAT(losses, testing::Contains(HasSubstr("metrics.jsonl is gone")));
  Log(**third, "p", 5);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(5));
  EXPECT_EQ(List("tensorboard/p").size(), 1u);
}

TEST_F(ResumeTest, WhatIsNoLineOfAStepAtTheEndIsCutOff) {
  const auto first = Create();
  Log(*first, "p", 1);
  const std::string good = Read("metrics.jsonl");
  for (const char* line : {"{}\n", "[1]\n", "\n", "{\"step\":1.5}\n", "{\"step\":\n", "{\"step\":2"}) {
    const std::string text = good + line;
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), run_ + "/metrics.jsonl", text).ok());
    const auto second = Open({{"metrics.jsonl", text.size()}});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_THAT((*second)->TakeLosses(), ElementsAre(Mentions({"metrics.jsonl", absl::StrCat(text.size())}))) << line;
    EXPECT_EQ(Read("metrics.jsonl"), good) << line;
  }
}

TEST_F(ResumeTest, OnlyLogsOfTheRunAreCut) {
  const auto first = Create();
  const std::string outside = run_ + "/../outside";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), outside, "contents").ok());
  ASSERT_TRUE(first->WriteConfig("seed: 1\n").ok());
  for (const char* name : {"../outside", "config.yaml", "tensorboard/../config.yaml"}) {
    EXPECT_EQ((*Open({{name, 1}}))->TakeLosses().size(), 1u) << name;
  }
  EXPECT_EQ(*Env::Real().ReadFile(outside), "contents");
  EXPECT_EQ(Read("config.yaml"), "seed: 1\n");
}

TEST_F(ResumeTest, AFolderWithoutARunIsRefused) {
  const absl::Status missing = Open({}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(run_));
  ASSERT_TRUE(Env::Real().CreateFolders(run_).ok());
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), run_ + "/metrics.jsonl", "mine\n").ok());
  EXPECT_EQ(Open({}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Read("metrics.jsonl"), "mine\n");
}

TEST_F(ResumeTest, WhereTheDiskIsFullItCanBeTriedAgain) {
  LogPosition position;
  {
    const auto first = Create();
    for (int step = 1; step <= 5; ++step) Log(*first, "p", step);
    position = *first->Position();
    for (int step = 6; step <= 8; ++step) Log(*first, "p", step);
  }
  LimitedEnv env(Env::Real(), static_cast<int64_t>(position.at("metrics.jsonl")) + 10);
  EXPECT_EQ(Open(position, env).status().code(), absl::StatusCode::kResourceExhausted);
  Log(**Open(position), "p", 6);
  EXPECT_THAT(Steps("metrics.jsonl"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Steps("samples.jsonl"), ElementsAre(1, 2, 3, 4, 5, 6));
}

}  // namespace
}  // namespace tdock::trainer
