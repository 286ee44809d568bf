#include "trainer/recipes/first_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

class FirstConfigTest : public testing::Test {
 protected:
  FirstConfigTest() : trained_("sft") { EXPECT_TRUE(trained_.Train().ok()); }

  std::string model() const { return trained_.run_dir() + "/checkpoint"; }
  std::string data() const { return trained_.folder() + "/train.jsonl"; }

  // Writes the configuration, and trains with it for a few steps.
  absl::StatusOr<RunResult> TrainWith(const std::string& yaml) {
    const std::string path = trained_.folder() + "/first.yaml";
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(Env::Real(), path, yaml));
    const std::vector<std::string> overrides = {"trainer.run_dir=" + NewFolder() + "/run",
                                                "trainer.total_training_steps=2"};
    TDOCK_ASSIGN_OR_RETURN(const auto recipe, LoadRecipe(Env::Real(), path, overrides));
    Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real());
    TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareRun(*recipe, {Env::Real(), Clock::Real(), progress}));
    return run->Train();
  }

  SmallRun trained_;
};

TEST_F(FirstConfigTest, RunsAsItIs) {
  for (const char* recipe : {"sft", "ppo", "grpo"}) {
    const auto yaml = FirstConfig(Env::Real(), recipe, model(), data());
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    EXPECT_THAT(*yaml, HasSubstr("Recognised as prompt_answer"));
    EXPECT_THAT(*yaml, Mentions({"val_share: 0.05", "4 of 80"}));
    const auto result = TrainWith(*yaml);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
    EXPECT_EQ(result->steps, 2);
    EXPECT_FALSE(result->last.empty());
  }
}

TEST_F(FirstConfigTest, RunsOnPreferences) {
  const std::string pairs = trained_.folder() + "/pairs.jsonl";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), pairs, DigitPreferences(false)).ok());
  for (const char* recipe : {"rm", "dpo"}) {
    const auto yaml = FirstConfig(Env::Real(), recipe, model(), pairs);
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    const auto result = TrainWith(*yaml);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
    EXPECT_TRUE(result->last.contains("val/accuracy"));
  }
}

TEST_F(FirstConfigTest, LengthsFitTheDataAndTheModel) {
  const auto sft = FirstConfig(Env::Real(), "sft", model(), data());
  ASSERT_TRUE(sft.ok()) << sft.status();
  EXPECT_THAT(*sft, Mentions({"max_length: 32 ", "has 6,", "takes 64"}));
  const auto grpo = FirstConfig(Env::Real(), "grpo", model(), data());
  ASSERT_TRUE(grpo.ok()) << grpo.status();
  EXPECT_THAT(*grpo, HasSubstr("max_prompt_length: 8"));
  EXPECT_THAT(*grpo, HasSubstr("max_response_length: 56"));
}

TEST_F(FirstConfigTest, WhatCannotBeTrainedIsRefused) {
  const auto refused = [&](const char* recipe, const std::string& model, const std::string& data) {
    return std::string(FirstConfig(Env::Real(), recipe, model, data).status().message());
  };
  EXPECT_THAT(refused("stf", model(), data()), HasSubstr("there are sft, rm, dpo, ppo, grpo"));
  EXPECT_THAT(refused("sft", "/nonexistent", data()), HasSubstr("/nonexistent"));
  EXPECT_THAT(refused("sft", model(), "/nonexistent.jsonl"), HasSubstr("/nonexistent.jsonl"));
  const std::string prompts = trained_.folder() + "/prompts.jsonl";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), prompts, "{\"prompt\": \"12>\"}\n").ok());
  EXPECT_THAT(refused("grpo", model(), prompts), Mentions({prompts, "data.columns.truth"}));
}

}  // namespace
}  // namespace tdock::trainer
