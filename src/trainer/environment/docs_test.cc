// Checks what docs/environments.md says about sources of environments: its messages, its program and its answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/env.h"
#include "core/base/testing/patience.h"
#include "nlohmann/json.hpp"
#include "text/replies/reply_parser.h"
#include "trainer/environment/arithmetic.h"
#include "trainer/environment/environment_config.h"
#include "trainer/environment/protocol.h"

namespace tdock::environment {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class EnvironmentPage : public testing::Test {
 protected:
  EnvironmentPage() : page_(*Env::Real().ReadFile("docs/environments.md")) {}

  std::string Section(const std::string& title) const {
    const size_t begin = page_.find(absl::StrCat("\n", title, "\n"));
    EXPECT_NE(begin, std::string::npos) << title;
    return page_.substr(begin, page_.find("\n#", begin + title.size()) - begin);
  }
  // The messages of one side, `    host:    {…}`, whose other lines are indented further.
  static std::vector<std::string> MessagesOf(absl::string_view section, absl::string_view side) {
    std::vector<std::string> messages;
    bool inside = false;
    for (absl::string_view line : absl::StrSplit(section, '\n')) {
      if (absl::StartsWith(line, "              ") && inside) {
        absl::StrAppend(&messages.back(), absl::StripAsciiWhitespace(line));
        continue;
      }
      inside = absl::ConsumePrefix(&line, absl::StrCat("    ", side, ":"));
      if (inside) messages.emplace_back(absl::StripAsciiWhitespace(line));
    }
    return messages;
  }
  static void ExpectSame(const std::string& shown, const std::string& line) {
    EXPECT_EQ(Json::parse(shown).dump(2), Json::parse(line).dump(2));
  }

  const std::string page_;
};

TEST_F(EnvironmentPage, ItsMessagesAreThoseOfTheProtocol) {
  const std::string section = Section("### The protocol");
  const std::vector<std::string> host = MessagesOf(section, "host");
  ASSERT_EQ(host.size(), 5U);
  ExpectSame(host[0], HelloLine({.columns = {"extra_info"}, .model = "models/small"}));
  ExpectSame(host[1], ResetLine(7, 123,
                                {.prompt = "Guess!",
                                 .messages = {{.role = text::Role::kUser, .content = "Guess!"}},
                                 .prompt_ids = {1, 2},
                                 .source = "games",
                                 .columns = {{"extra_info", "{}"}}}));
  ExpectSame(host[2], StepLine(7, {.role = text::Role::kAssistant, .content = "50"}));
  ExpectSame(host[4], EndLine(7));
  const std::vector<std::string> program = MessagesOf(section, "program");
  ASSERT_EQ(program.size(), 4U);
  EXPECT_EQ(ParseHello(program[0]).value().episodes, 64);
  for (size_t i = 1; i < program.size(); ++i) {
    const auto event = ParseEvent(program[i], /*is_agent=*/false);
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ(IsLast(*event), i == 3);
  }
}

TEST_F(EnvironmentPage, ItsMessagesOfAgentsAreThoseOfTheProtocol) {
  const std::string section = Section("### Agents");
  const std::vector<std::string> host = MessagesOf(section, "host"), program = MessagesOf(section, "program");
  ASSERT_EQ(host.size(), 2U);
  Json run = Json::parse(RunLine(7, 123, {.prompt = "…"}, {.max_tokens = 256}));
  run["row"] = {{"prompt", "…"}};
  ExpectSame(host[0], run.dump());
  ExpectSame(host[1], GeneratedLine(7, 0,
                                    Generated{.token_ids = {4, 5},
                                              .log_probs = {-0.5F, -0.25F},
                                              .stop_reason = "end_token",
                                              .weights_version = 3}));
  ASSERT_EQ(program.size(), 2U);
  EXPECT_EQ(std::get<GenerateRequest>(*ParseEvent(program[0], true).value().what).max_tokens, 64);
  EXPECT_EQ(std::get<AgentOutput>(*ParseEvent(program[1], true).value().what).response_ids.size(), 3U);
}

TEST_F(EnvironmentPage, ItsMessagesOfClientsAreThoseOfTheProtocol) {
  const std::string section = Section("### Clients");
  const std::vector<std::string> host = MessagesOf(section, "host"), program = MessagesOf(section, "program");
  ASSERT_EQ(host.size(), 1U);
  const Endpoint endpoint{.base_url = "http://127.0.0.1:34567/episode/KEY/v1", .api_key = "KEY", .model = "policy"};
  Json run = Json::parse(RunLine(7, 123, {.prompt = "…"}, {.max_tokens = 256}, &endpoint));
  run["row"] = {{"prompt", "…"}};
  ExpectSame(host[0], run.dump());
  ASSERT_EQ(program.size(), 1U);
  EXPECT_EQ(CheckEndsEpisode(ParseEvent(program[0], /*is_agent=*/false).value()), absl::OkStatus());
}

TEST_F(EnvironmentPage, ItsProgramPlays) {
  const std::string section = Section("## Programs in any language");
  const size_t begin = section.find("```python\n") + 10;
  std::string folder = testing::TempDir() + "/environment_page_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/guess.py") << section.substr(begin, section.find("```", begin) - begin);
  EnvironmentConfig config{.program = absl::StrCat("python3 '", folder, "/guess.py'")};
  config.timeout = config.start_timeout = absl::ToDoubleSeconds(kNever);
  const auto environment = *MakeEnvironment(config, {});
  ASSERT_TRUE(environment->Start().ok());
  const auto next = [&] {
    const auto events = environment->Wait(absl::Now() + kPatience);
    EXPECT_TRUE(events.ok() && (*events)[0].what.ok()) << events.status();
    return std::get<Observation>(*(*events)[0].what);
  };
  environment->Reset(1, 123, {.prompt = "Guess!"});
  Observation seen = next();
  int low = 1, high = 100;
  for (int guesses = 0; guesses < 8 && !seen.done; ++guesses) {
    const int guess = (low + high) / 2;
    environment->Step(1, {.role = text::Role::kAssistant, .content = absl::StrCat(guess)});
    seen = next();
    if (seen.done) break;
    (seen.messages.at(0).content == "Larger." ? low : high) = guess + (seen.messages[0].content == "Larger." ? 1 : -1);
  }
  EXPECT_TRUE(seen.done);
  EXPECT_THAT(seen.rewards, testing::ElementsAre(testing::Pair("found", 1)));
  std::filesystem::remove_all(folder);
}

TEST_F(EnvironmentPage, ToolCallsAreReadAsItShows) {
  const std::string section = Section("## Tool calls");
  const size_t said = section.find("    Let me see."), turn = section.find("    {\"role\""),
               error = section.find("    The call ");
  const auto block = [&](size_t at) {
    std::string text;
    for (const absl::string_view line : absl::StrSplit(section.substr(at, section.find("\n\n", at) - at), '\n')) {
      absl::StrAppend(&text, line.substr(4), "\n");
    }
    return text;
  };
  const absl::StatusOr<text::Turn> parsed = text::ReadModelTurn({}, block(said));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(Json::parse(StepLine(1, *parsed))["message"], Json::parse(block(turn)));
  EXPECT_EQ(absl::StrCat(text::ReadModelTurn({}, "<tool_call>{}").status().message(), "\n"), block(error));
}

TEST_F(EnvironmentPage, TheCalculatorComputesAsItSays) {
  const std::string section = Section("## The calculator");
  EXPECT_THAT(section, HasSubstr("`0.1+0.2` is `0.3`"));
  EXPECT_EQ(*Evaluate("0.1+0.2"), "0.3");
  EXPECT_EQ(*Evaluate("1/3"), "1/3");
  for (const char* wrong : {"1/0", "3 x 4"}) {
    EXPECT_THAT(section, HasSubstr(absl::StrCat("error: ", Evaluate(wrong).status().message())));
  }
}

}  // namespace
}  // namespace tdock::environment
