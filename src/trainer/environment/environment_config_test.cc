#include "trainer/environment/environment_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"

namespace tdock::environment {
namespace {

class EnvironmentConfigTest : public testing::Test {
 protected:
  static std::string LoadMessage(absl::string_view yaml) {
    EnvironmentConfig config;
    config::Spec spec;
    BindEnvironment(spec, config);
    return std::string(config::Load(spec, yaml, "grpo.yaml", {}).message());
  }
};

TEST_F(EnvironmentConfigTest, SourcesAreChecked) {
  EXPECT_EQ(LoadMessage(""), "");
  EXPECT_EQ(LoadMessage("environment: {name: calculator, format: text, max_turns: 4}"), "");
  EXPECT_EQ(LoadMessage("environment: {function: 'games.py:Maze', python: python3.11, memory_gb: 0}"), "");
  EXPECT_EQ(LoadMessage("environment: {url: 'https://games/', url_token_env: TOKEN, max_restarts: 3}"), "");
  EXPECT_EQ(LoadMessage("environment: {program: ./maze --hard, on_error: drop, tool_format: none}"), "");
  EXPECT_EQ(LoadMessage("environment: {name: calculator, tool_format: qwen_coder}"), "");
  EXPECT_THAT(LoadMessage("environment: {name: calculator, tool_format: xml}"),
              Mentions({"environment.tool_format", "auto", "none", "hermes", "glm"}));
  EXPECT_THAT(LoadMessage("environment: {program: ./maze, name: calculator}"),
              Mentions({"grpo.yaml:1", "environment.program", "environment.name", "one environment"}));
  EXPECT_THAT(LoadMessage("environment: {program: \"./maze 'x\"}"), Mentions({"environment.program", "./maze", "a '"}));
  EXPECT_THAT(LoadMessage("environment: {function: games.py}"),
              Mentions({"environment.function", "\"games.py\"", "FILE.py:NAME", "MODULE:NAME"}));
  EXPECT_THAT(LoadMessage("environment: {url: 'games.example'}"),
              Mentions({"environment.url", "https://HOST[:PORT]/PATH"}));
  EXPECT_THAT(LoadMessage("environment: {name: abacus}"), Mentions({"environment.name", "\"abacus\"", "calculator"}));
  EXPECT_THAT(LoadMessage("environment: {name: calculator, max_turns: 0, format: html}"),
              Mentions({"environment.max_turns", "environment.format"}));
}

TEST_F(EnvironmentConfigTest, KeysThatMeanNothingAreRefused) {
  EXPECT_THAT(LoadMessage("environment: {max_turns: 3}"), Mentions({"environment.max_turns: ", "environment.program"}));
  EXPECT_THAT(LoadMessage("environment: {name: calculator, retries: 3}"),
              Mentions({"environment.retries: ", "built in"}));
  EXPECT_THAT(LoadMessage("environment: {program: ./maze, python: python3.11}"),
              Mentions({"environment.python: ", "no environment.function"}));
  EXPECT_THAT(LoadMessage("environment: {program: ./maze, url_verify: false}"),
              Mentions({"environment.url_verify: ", "no environment.url"}));
  EXPECT_THAT(LoadMessage("environment: {url: 'http://games/', memory_gb: 1}"),
              Mentions({"environment.memory_gb: ", "no environment.program"}));
  EXPECT_THAT(LoadMessage("environment: {program: ./maze, tool_format: none, on_bad_call: end}"),
              Mentions({"environment.on_bad_call: ", "environment.tool_format none"}));
}

TEST_F(EnvironmentConfigTest, MakesWhatIsConfigured) {
  EXPECT_EQ(*MakeEnvironment({}, {}), nullptr);
  EXPECT_EQ((*MakeEnvironment({.name = "calculator"}, {}))->name(), "calculator");
  EXPECT_EQ((*MakeEnvironment({.url = "http://games:80/maze?key=1"}, {}))->name(), "games/maze");
  EXPECT_EQ((*MakeEnvironment({.program = "'/opt/my maze' --hard"}, {}))->name(), "/opt/my maze");
  EXPECT_EQ((*MakeEnvironment({.function = "games.py:Maze"}, {}))->name(), "games.py:Maze");
  EXPECT_THAT(MakeEnvironment({.url = "http://games/", .url_token_env = "NO_SUCH_VARIABLE"}, {}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"environment.url_token_env", "NO_SUCH_VARIABLE"}));
  std::vector<std::string> log;
  ::setenv("ENVIRONMENT_CONFIG_TEST_TOKEN", "x", 1);
  EXPECT_TRUE(MakeEnvironment({.url = "http://games/", .url_token_env = "ENVIRONMENT_CONFIG_TEST_TOKEN"},
                              {.log = [&](const std::string& line) { log.push_back(line); }})
                  .ok());
  EXPECT_THAT(log, testing::ElementsAre(Mentions({"environment.url_token_env", "https"})));
}

TEST_F(EnvironmentConfigTest, APythonClassNeedsNothingInstalled) {
  std::string folder = testing::TempDir() + "/environment_config_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/games.py") << "class Echo:\n"
                                         "    def reset(self, seed, row):\n"
                                         "        return {'messages': [{'role': 'user', 'content': row['prompt']}]}\n"
                                         "    def step(self, message):\n"
                                         "        return {'rewards': {'said': 1.5}, 'done': True}\n";
  EnvironmentConfig config{.function = folder + "/games.py:Echo"};
  config.timeout = config.start_timeout = absl::ToDoubleSeconds(kNever);
  auto environment = *MakeEnvironment(config, {});
  const auto started = environment->Start();
  ASSERT_TRUE(started.ok()) << started.status();
  environment->Reset(1, 2, {.prompt = "hello"});
  auto events = environment->Wait(absl::Now() + kPatience);
  ASSERT_TRUE(events.ok() && events->at(0).what.ok()) << events.status() << events->at(0).what.status();
  EXPECT_EQ(std::get<Observation>(*events->at(0).what).messages.at(0).content, "hello");
  environment->Step(1, {.role = text::Role::kAssistant, .content = "x"});
  events = environment->Wait(absl::Now() + kPatience);
  ASSERT_TRUE(events.ok() && events->at(0).what.ok()) << events.status();
  EXPECT_TRUE(std::get<Observation>(*events->at(0).what).done);
  config.function = folder + "/games.py:Ecko";
  EXPECT_THAT((*MakeEnvironment(config, {}))->Start().status(),
              Fails(absl::StatusCode::kUnavailable, {"games.py:Ecko", "Echo"}));
  std::filesystem::remove_all(folder);
}

TEST_F(EnvironmentConfigTest, TheCommandLineOfAPythonClassIsShort) {
  std::string folder = testing::TempDir() + "/environment_config_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/games.py") << "assert len(open('/proc/self/cmdline').read()) < 1000\n"
                                         "class Echo:\n"
                                         "    def reset(self):\n"
                                         "        return 'x'\n";
  EnvironmentConfig config{.function = folder + "/games.py:Echo"};
  config.timeout = config.start_timeout = absl::ToDoubleSeconds(kNever);
  const auto environment = *MakeEnvironment(config, {});
  EXPECT_TRUE(environment->Start().ok()) << environment->Start().status();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tdock::environment
