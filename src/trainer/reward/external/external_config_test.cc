#include "trainer/reward/external/external_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;

struct Both {
  RewardConfig rules;
  ExternalRewardConfig external;
  config::Spec spec;
  Both() {
    BindReward(spec, rules);
    BindExternalReward(spec, external);
  }
  absl::Status Load(absl::string_view yaml) { return config::Load(spec, yaml, "grpo.yaml", {}); }
  absl::StatusOr<std::unique_ptr<Reward>> Make() {
    external.timeout = external.start_timeout = absl::ToDoubleSeconds(kNever);
    return MakeRunReward(rules, external, {}, [](const std::string&) {});
  }
};

std::string LoadMessage(absl::string_view yaml) { return std::string(Both().Load(yaml).message()); }

const Answer kAnswer = {.prompt = "p", .response = "abc", .finished = true, .truth = "abc"};

// Hello, then this score for each batch of one sample.
std::string ShellProgram(const std::string& score) {
  return absl::StrCat(
      "sh -c 'read l; echo \"{\\\"type\\\":\\\"hello\\\",\\\"protocol\\\":1}\"; n=0; while read l; do ",
      "n=$((n+1)); echo \"{\\\"type\\\":\\\"scores\\\",\\\"batch\\\":$n,\\\"scores\\\":[{\\\"sample\\\":0,",
      "\\\"score\\\":", score, "}]}\"; done'");
}

TEST(ExternalConfig, AllErrorsAreReportedTogether) {
  EXPECT_THAT(LoadMessage("reward:\n  function: [rewards.py]\n  function_weights: [1, 2]\n  program: [\"a 'b\"]\n"
                          "  program_weights: [x]\n  timeout: 0\n  retries: -1\n"),
              Mentions({"reward.function", "FILE.py:NAME", "2 weights", "1 sources", "reward.program", "has a '",
                        "reward.program_weights", "weight \"x\"", "reward.timeout", "reward.retries"}));
  EXPECT_EQ(LoadMessage("reward: {function: rewards.py:f, processes: 4, python: python3.11}"), "");
  EXPECT_EQ(LoadMessage("reward: {program: ./score, on_error: score, error_score: -1}"), "");
}

TEST(ExternalConfig, KeysThatMeanNothingAreRefused) {
  EXPECT_THAT(LoadMessage("reward: {timeout: 3}"),
              Mentions({"reward.timeout: ", "reward.function", "reward.program", "reward.url"}));
  EXPECT_THAT(LoadMessage("reward: {program: ./score, error_score: 3}"),
              Mentions({"reward.error_score: ", "reward.on_error"}));
  EXPECT_THAT(LoadMessage("reward: {program: ./score, python: python3.11}"),
              Mentions({"reward.python: ", "no reward.function"}));
}

TEST(ExternalConfig, NamesAreUniqueAndFitMetrics) {
  ExternalRewardConfig config;
  config.functions = {"a.py:accuracy", "b.py:accuracy", "c.py:math"};
  config.programs = {"/opt/tools/score it --fast", "'/opt/my score'", "accuracy"};
  EXPECT_THAT(SourceNames(config), ElementsAre("accuracy", "accuracy_2", "math_2", "score", "my_score", "accuracy_3"));
}

TEST(ExternalConfig, WithoutAnyRuleOnlyProgramsCount) {
  Both both;
  both.external.programs = {ShellProgram("0.5")};
  both.external.program_weights = {"3"};
  EXPECT_THAT((*both.Make())->Score({&kAnswer, 1})->totals, ElementsAre(1.5F));
  both.rules.exact.weight = 10;
  EXPECT_THAT((*both.Make())->Score({&kAnswer, 1})->totals, ElementsAre(11.5F));
}

TEST(ExternalConfig, APythonFunctionNeedsNothingInstalled) {
  std::string folder = testing::TempDir() + "/external_config_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/my.py") << "def length(completions, **kwargs):\n    print('seen')\n"
                                      "    return [len(c) / 2 for c in completions]\n";
  Both both;
  both.external.functions = {folder + "/my.py:length"};
  const absl::StatusOr<Scores> scores = (*both.Make())->Score({&kAnswer, 1});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(1.5F));
  both.external.functions = {folder + "/my.py:lenght"};
  EXPECT_THAT((*both.Make())->Score({&kAnswer, 1}).status(),
              Fails(absl::StatusCode::kUnavailable, {"my.py", "lenght", "length"}));
  std::filesystem::remove_all(folder);
}

TEST(ExternalConfig, TheCommandLineOfAPythonFunctionIsShort) {
  std::string folder = testing::TempDir() + "/external_config_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/my.py") << "def length(completions, **kwargs):\n"
                                      "    return [len(open('/proc/self/cmdline').read()) for c in completions]\n";
  Both both;
  both.external.functions = {folder + "/my.py:length"};
  const absl::StatusOr<Scores> scores = (*both.Make())->Score({&kAnswer, 1});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(testing::Lt(1000.0F)));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tdock::reward
