#include "trainer/environment/environment_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/supervised_process.h"
#include "core/base/utf8.h"
#include "trainer/environment/calculator.h"
#include "trainer/environment/environments_module.h"
#include "trainer/environment/http_environment.h"
#include "trainer/environment/program_environment.h"
#include "trainer/reward/external/http_source.h"
#include "trainer/reward/external/http_url.h"
#include "trainer/reward/external/words.h"

namespace tdock::environment {
namespace {

constexpr double kMostSeconds = 86400;

absl::Status CheckFunction(const std::string& function) {
  const size_t colon = function.rfind(':');
  if (colon != std::string::npos && colon > 0 && colon + 1 < function.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the function ", Quoted(function), " must have the form FILE.py:NAME or MODULE:NAME"));
}

absl::Status CheckName(const std::string& name) {
  const std::vector<std::string> names = BuiltInNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no environment ", Quoted(name), " is built in; there is ",
                                                 absl::StrJoin(names, ", "),
                                                 ", and environment.function takes one of your own, FILE.py:NAME"));
}

void BindSource(config::Spec& spec, EnvironmentConfig& c) {
  spec.String("environment.program", &c.program,
              "Command line of a program that plays episodes over its standard input and output; empty: none.");
  spec.String(
      "environment.function", &c.function,
      "Python class of environments or agents, or function of base_url, as FILE.py:NAME or MODULE:NAME; empty: none.");
  spec.String("environment.url", &c.url, "HTTP server that plays episodes; empty: none.");
  spec.String("environment.name", &c.name,
              absl::StrCat("Environment that is built in: ", absl::StrJoin(BuiltInNames(), ", "), "; empty: none."));
  spec.Check({"environment.program", "environment.function", "environment.url", "environment.name"}, [&c] {
    std::vector<std::string> wrong;
    int given = 0;
    for (const std::string* source : {&c.program, &c.function, &c.url, &c.name}) given += source->empty() ? 0 : 1;
    if (given > 1) wrong.emplace_back("a run has one environment: give one of them");
    const auto add = [&wrong](const absl::Status& status) {
      if (!status.ok()) wrong.emplace_back(status.message());
    };
    if (!c.program.empty()) add(reward::SplitWords(c.program).status());
    if (!c.function.empty()) add(CheckFunction(c.function));
    if (!c.url.empty()) add(reward::ParseHttpUrl(c.url).status());
    if (!c.name.empty()) add(CheckName(c.name));
    return wrong;
  });
  spec.String("environment.python", &c.python, "The Python that runs environment.function.").NotEmpty();
  spec.String("environment.url_token_env", &c.url_token_env,
              "Environment variable with the bearer token for the server; empty: none is sent.");
  spec.String("environment.url_ca_file", &c.url_ca_file,
              "Certificates (PEM) that are trusted for https; empty: those of the system.");
  spec.Bool("environment.url_verify", &c.url_verify, "Check the certificate of the server.");
}

void BindProcesses(config::Spec& spec, EnvironmentConfig& c) {
  spec.Int("environment.processes", &c.processes,
           "Processes of the program or function, requests at a time to the URL.")
      .AtLeast(1)
      .AtMost(256);
  spec.Float("environment.timeout", &c.timeout, "Seconds within which an episode must go on when it is its turn.")
      .MoreThan(0)
      .AtMost(kMostSeconds);
  spec.Float("environment.start_timeout", &c.start_timeout,
             "Seconds within which a process, or the server, must say hello.")
      .MoreThan(0)
      .AtMost(kMostSeconds);
  spec.Int("environment.max_restarts", &c.max_restarts,
           "How often in a row, without an event between, a program is started again, or the server may fail, before "
           "the run stops.")
      .AtLeast(0);
  spec.Float("environment.memory_gb", &c.memory_gb,
             "GiB of memory that a process may use with its children; 0: no limit.")
      .AtLeast(0)
      .AtMost(1 << 20);
}

std::vector<std::pair<std::string, std::optional<text::ReplyForm>>> ToolFormats() {
  std::vector<std::pair<std::string, std::optional<text::ReplyForm>>> formats = {{"auto", std::nullopt}};
  for (const std::string& name : text::ReplyFormNames()) {
    const text::ReplyForm form = *text::ReplyFormNamed(name);
    formats.emplace_back(form == text::ReplyForm::kPlain ? "none" : name, form);
  }
  return formats;
}

void BindEpisodes(config::Spec& spec, EnvironmentConfig& c) {
  spec.Int("environment.retries", &c.retries, "How often an episode that fails is tried again from its beginning.")
      .AtLeast(0)
      .AtMost(100);
  spec.Choice("environment.on_error", &c.on_error,
              {{"stop", OnError::kStop}, {"zero", OnError::kZero}, {"drop", OnError::kDrop}},
              "What becomes of an episode whose tries have all failed: the run stops, its reward is 0, or the step "
              "goes on without its prompt.");
  spec.Int("environment.max_turns", &c.max_turns, "Most answers of the model in an episode.").AtLeast(1).AtMost(1000);
  spec.Int("environment.max_observation_tokens", &c.max_observation_tokens,
           "Most tokens of what the environment says at once; the rest is cut off, and the text says so.")
      .AtLeast(1)
      .AtMost(1 << 20);
  spec.Choice("environment.format", &c.format, {{"chat", TurnFormat::kChat}, {"text", TurnFormat::kText}},
              "How turns are written: by the model's chat template, or as they are.");
  spec.Choice("environment.tool_format", &c.tool_format, ToolFormats(),
              "Form in which the model calls tools: auto is that of its chat template, or hermes where that has none; "
              "none: it calls nothing.");
  spec.Choice("environment.on_bad_call", &c.on_bad_call, {{"tell", OnBadCall::kTell}, {"end", OnBadCall::kEnd}},
              "What becomes of a call of a tool that cannot be understood: the model is told, or the episode ends.");
  spec.Strings("environment.stop", &c.stop,
               "Texts that end an answer of the model, beside its end tokens; they are part of it. Empty: none.");
}

absl::StatusOr<std::unique_ptr<Environment>> MakeHttp(const EnvironmentConfig& c, const EnvironmentSetup& setup) {
  absl::StatusOr<std::unique_ptr<Environment>> made =
      MakeHttpEnvironment({.url = c.url,
                           .token_env = c.url_token_env,
                           .ca_file = c.url_ca_file,
                           .verify = c.url_verify,
                           .setup = setup,
                           .connections = c.processes,
                           .timeout = absl::Seconds(c.timeout),
                           .start_timeout = absl::Seconds(c.start_timeout),
                           .max_failures = c.max_restarts});
  if (!made.ok()) return Annotate(made.status(), "environment.url");
  if (!c.url_token_env.empty() && absl::StartsWithIgnoreCase(c.url, "http://")) {
    setup.log(absl::StrCat("warning: environment ", (*made)->name(), ": the token of ", c.url_token_env,
                           " (environment.url_token_env) goes over http, where everybody on the way can read it; use "
                           "https"));
  }
  return made;
}

}  // namespace

void BindEnvironment(config::Spec& spec, EnvironmentConfig& c) {
  BindSource(spec, c);
  BindProcesses(spec, c);
  BindEpisodes(spec, c);
  const auto unused = [&](std::vector<std::string> keys, std::function<bool()> when, std::string why) {
    spec.Unused(
        std::move(keys), [&c, when = std::move(when)] { return c.used() && when(); }, std::move(why));
  };
  unused(
      {"environment.python"}, [&c] { return c.function.empty(); }, "there is no environment.function");
  unused(
      {"environment.url_token_env", "environment.url_ca_file", "environment.url_verify"},
      [&c] { return c.url.empty(); }, "there is no environment.url");
  unused(
      {"environment.memory_gb"}, [&c] { return c.program.empty() && c.function.empty(); },
      "there is no environment.program and no environment.function");
  unused(
      {"environment.processes", "environment.timeout", "environment.start_timeout", "environment.max_restarts",
       "environment.retries", "environment.on_error"},
      [&c] { return !c.name.empty(); }, "an environment that is built in does not fail");
  unused(
      {"environment.on_bad_call"}, [&c] { return c.tool_format == text::ReplyForm::kPlain; },
      "no tool is called with environment.tool_format none");
  spec.Unused(
      {"environment.python", "environment.url_token_env", "environment.url_ca_file", "environment.url_verify",
       "environment.processes", "environment.timeout", "environment.start_timeout", "environment.max_restarts",
       "environment.memory_gb", "environment.retries", "environment.on_error", "environment.max_turns",
       "environment.max_observation_tokens", "environment.format", "environment.tool_format", "environment.on_bad_call",
       "environment.stop"},
      [&c] { return !c.used(); },
      "there is no environment; set environment.program, environment.function, environment.url or environment.name");
}

absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const EnvironmentConfig& c,
                                                             const EnvironmentSetup& setup) {
  if (!c.name.empty()) return MakeBuiltInEnvironment(c.name, c.format);
  if (!c.url.empty()) return MakeHttp(c, setup);
  if (c.program.empty() && c.function.empty()) return nullptr;
  ProgramEnvironmentOptions options{.name = c.function,
                                    .arguments = {c.python, "-c", ScriptReader("environments.py"), c.function},
                                    .script = kEnvironmentsModule,
                                    .setup = setup,
                                    .processes = c.processes,
                                    .timeout = absl::Seconds(c.timeout),
                                    .start_timeout = absl::Seconds(c.start_timeout),
                                    .max_restarts = c.max_restarts,
                                    .memory_bytes = static_cast<int64_t>(c.memory_gb * (int64_t{1} << 30))};
  if (c.function.empty()) {
    absl::StatusOr<std::vector<std::string>> words = reward::SplitWords(c.program);
    if (!words.ok()) return Annotate(words.status(), "environment.program");
    options.name = words->front();
    options.arguments = *std::move(words);
    options.script = {};
  } else {
    TDOCK_RETURN_IF_ERROR(Annotate(CheckFunction(c.function), "environment.function"));
  }
  return MakeProgramEnvironment(std::move(options));
}

}  // namespace tdock::environment
