#include "core/command/command.h"
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::command {
namespace {

struct Outcome {
  int code = 0;
  std::string said;
};

// A program with the commands train, which takes overrides, generate, and runs, which has commands of its own.
Outcome RunProgram(std::vector<std::string> arguments) {
  CLI::App app("A program.", "program");
  app.require_subcommand(1);
  std::vector<std::string> overrides;
  std::string config, run_dir, prompt;
  CLI::App* train = app.add_subcommand("train", "Trains.");
  train->add_option("config", config, "File")->required();
  train->add_option("overrides", overrides, "Overrides");
  train->add_option("--run-dir", run_dir, "Folder");
  CLI::App* generate = app.add_subcommand("generate", "Generates.");
  generate->add_option("--prompt", prompt, "Prompt");
  bool json = false;
  CLI::App* runs = app.add_subcommand("runs", "Runs.");
  runs->require_subcommand(1);
  runs->add_subcommand("list", "Lists.")->add_flag("--json", json, "JSON");
  std::vector<char*> argv = {const_cast<char*>("program")};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStderr();
  const int code = ParseAndRun(app, static_cast<int>(argv.size()), argv.data(), [] { return absl::OkStatus(); });
  return {code, testing::internal::GetCapturedStderr()};
}

std::string RefusedCall(std::vector<std::string> arguments) {
  Outcome outcome = RunProgram(std::move(arguments));
  EXPECT_EQ(outcome.code, 2);
  return std::move(outcome.said);
}

TEST(ParseAndRun, SuggestsTheNearestCommand) {
  EXPECT_THAT(RefusedCall({"trian", "a.yaml"}), Mentions({"program:", "command trian", "train?", "--help"}));
  EXPECT_THAT(RefusedCall({"quux"}), Mentions({"program:", "command quux", "train, generate, runs", "--help"}));
  EXPECT_THAT(RefusedCall({"runs", "lst"}), Mentions({"program runs:", "command lst", "list?", "--help"}));
}

TEST(ParseAndRun, SaysThatKeysHaveNoDashes) {
  EXPECT_THAT(RefusedCall({"train", "a.yaml", "--rollout.n=16"}),
              Mentions({"program train:", "--rollout.n;", "dashes", " rollout.n=16", "--help"}));
  EXPECT_THAT(RefusedCall({"train", "a.yaml", "--rollout.n", "16"}),
              Mentions({"program train:", "--rollout.n;", "dashes", " rollout.n=…", "--help"}));
  EXPECT_THAT(RefusedCall({"generate", "--rollout.n=16"}), testing::Not(testing::HasSubstr("dashes")))
      << "it takes no overrides";
}

TEST(ParseAndRun, SuggestsTheNearestOption) {
  EXPECT_THAT(RefusedCall({"train", "a.yaml", "--run-dri", "x"}),
              Mentions({"program train:", "--run-dri;", "--run-dir?", "--help"}));
  EXPECT_THAT(RefusedCall({"generate", "--promt=x"}),
              Mentions({"program generate:", "--promt;", "--prompt?", "--help"}));
  EXPECT_THAT(RefusedCall({"runs", "list", "--jsn"}), Mentions({"program runs list:", "--jsn;", "--json?", "--help"}));
}

TEST(ParseAndRun, LeavesOtherErrorsAsTheyAre) {
  EXPECT_THAT(RefusedCall({}), testing::HasSubstr("subcommand is required"));
  EXPECT_THAT(RefusedCall({"train"}), testing::HasSubstr("config is required"));
  EXPECT_THAT(RefusedCall({"generate", "--zzzzzzzz"}), testing::HasSubstr("--zzzzzzzz"));
}

TEST(ParseAndRun, RunsWhatCanBeParsed) {
  const Outcome outcome = RunProgram({"train", "a.yaml", "rollout.n=16", "--run-dir", "x"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.said, "");
}

TEST(ParseAndRun, QuotesArguments) {
  const std::string hostile = kHostileText;
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{hostile},
                                             {"train", "a.yaml", "--" + hostile},
                                             {"train", "a.yaml", "--rollout.n=" + hostile},
                                             {"train", "a.yaml", "--run-dri=" + hostile},
                                             {"generate", hostile},
                                             {"runs", hostile},
                                             {"runs", "list", hostile}}) {
    const std::string said = RefusedCall(arguments);
    EXPECT_TRUE(IsSafeForTerminals(said, "\n")) << EscapeForTerminal(said);
    EXPECT_THAT(said, testing::Not(testing::HasSubstr("\nFAKE")));
  }
}

TEST(ParseAndRun, EscapesWhatWouldChangeATerminal) {
  CLI::App app("A program.", "program");
  std::vector<char*> argv = {const_cast<char*>("program")};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseAndRun(app, 1, argv.data(), [] { return absl::InternalError("two\n\tlines\x1b[2J\u202e"); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: two\n\tlines\\x1b[2J\\u202e\n");
}

TEST(ParseAndRun, EndsWithTheCodeOfAnotherProgram) {
  CLI::App app("A program.", "program");
  std::vector<char*> argv = {const_cast<char*>("program")};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseAndRun(app, 1, argv.data(), [] { return EndedWith(137, "the other was killed"); }), 137);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: the other was killed\n");
}

}  // namespace
}  // namespace tdock::command
