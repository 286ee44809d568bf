#include "trainer/reward/external/external_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/supervised_process.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/combined_reward.h"
#include "trainer/reward/external/http_source.h"
#include "trainer/reward/external/program_source.h"
#include "trainer/reward/external/rewards_module.h"
#include "trainer/reward/external/words.h"

namespace tdock::reward {
namespace {

constexpr double kMostSeconds = 86400;

std::vector<std::string> MessagesOf(const absl::Status& status) {
  if (status.ok()) return {};
  return {std::string(status.message())};
}

// One weight for each of `sources`; 1 where none is given.
absl::StatusOr<std::vector<double>> WeightsOf(const std::vector<std::string>& texts, size_t sources) {
  if (texts.empty()) return std::vector<double>(sources, 1.0);
  if (texts.size() != sources) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", texts.size(), " weights for ", sources, " sources; give one for each, or none"));
  }
  std::vector<double> weights;
  for (const std::string& text : texts) {
    double& weight = weights.emplace_back();
    if (!absl::SimpleAtod(text, &weight) || !std::isfinite(weight) || weight == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the weight ", Quoted(text), " is no finite number other than 0"));
    }
  }
  return weights;
}

absl::Status CheckFunction(const std::string& function) {
  const size_t colon = function.rfind(':');
  if (colon != std::string::npos && colon > 0 && colon + 1 < function.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the function ", Quoted(function), " must have the form FILE.py:NAME"));
}

// The last component, as a part of names of metrics.
std::string BaseName(const std::string& path, char behind) {
  std::string name = path.substr(path.rfind(behind) + 1);
  for (char& c : name) {
    const bool fits =
        absl::StrContains("_-.", c) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!fits) c = '_';
  }
  return name.substr(0, 100);
}

void BindSources(config::Spec& spec, ExternalRewardConfig& c) {
  spec.Strings("reward.function", &c.functions,
               "Python functions that score answers, as FILE.py:NAME, in the styles of TRL and verl.");
  spec.Strings("reward.function_weights", &c.function_weights, "Their weights in the sum, in their order; empty: 1.");
  spec.Strings("reward.program", &c.programs,
               "Command lines of programs that score answers over their standard input and output.");
  spec.Strings("reward.program_weights", &c.program_weights, "Their weights in the sum, in their order; empty: 1.");
  spec.Check({"reward.function"}, [&c] {
    std::vector<std::string> wrong;
    for (const std::string& function : c.functions) {
      for (std::string& message : MessagesOf(CheckFunction(function))) wrong.push_back(std::move(message));
    }
    return wrong;
  });
  spec.Check({"reward.program"}, [&c] {
    std::vector<std::string> wrong;
    for (const std::string& program : c.programs) {
      for (std::string& message : MessagesOf(SplitWords(program).status())) wrong.push_back(std::move(message));
    }
    return wrong;
  });
  spec.Check({"reward.function_weights", "reward.function"},
             [&c] { return MessagesOf(WeightsOf(c.function_weights, c.functions.size()).status()); });
  spec.Check({"reward.program_weights", "reward.program"},
             [&c] { return MessagesOf(WeightsOf(c.program_weights, c.programs.size()).status()); });
}

ProgramOptions OptionsOf(const ExternalRewardConfig& c, const std::vector<std::string>& columns, const LogSink& log) {
  return {.name = {},
          .arguments = {},
          .columns = columns,
          .processes = c.processes,
          .batch_size = c.batch_size,
          .timeout = absl::Seconds(c.timeout),
          .start_timeout = absl::Seconds(c.start_timeout),
          .retries = c.retries,
          .max_restarts = c.max_restarts,
          .memory_bytes = static_cast<int64_t>(c.memory_gb * (int64_t{1} << 30)),
          .log = log};
}

absl::Status AddServers(const ExternalRewardConfig& c, const std::vector<std::string>& names, const LogSink& log,
                        std::vector<WeightedSource>& sources) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<double> weights, WeightsOf(c.http.weights, c.http.urls.size()));
  for (size_t i = 0; i < c.http.urls.size(); ++i) {
    const HttpOptions options{.name = names[sources.size()],
                              .url = c.http.urls[i],
                              .token_env = c.http.token_env,
                              .ca_file = c.http.ca_file,
                              .verify = c.http.verify,
                              .connections = c.processes,
                              .batch_size = c.batch_size,
                              .timeout = absl::Seconds(c.timeout),
                              .retries = c.retries};
    absl::StatusOr<std::unique_ptr<ScoreSource>> source = MakeHttpSource(options);
    if (!source.ok()) return Annotate(source.status(), "reward.url");
    if (!c.http.token_env.empty() && absl::StartsWithIgnoreCase(options.url, "http://")) {
      log(absl::StrCat("warning: reward ", options.name, ": the token of ", c.http.token_env,
                       " (reward.url_token_env) goes over http, where everybody on the way can read it; use https"));
    }
    sources.push_back({.source = *std::move(source), .weight = weights[i]});
  }
  return absl::OkStatus();
}

}  // namespace

void BindExternalReward(config::Spec& spec, ExternalRewardConfig& c) {
  BindSources(spec, c);
  BindHttpReward(spec, c.http);
  spec.Check({"reward.url_weights", "reward.url"},
             [&c] { return MessagesOf(WeightsOf(c.http.weights, c.http.urls.size()).status()); });
  BindCodeReward(spec, c.code);
  spec.String("reward.python", &c.python, "The Python that runs reward.function.").NotEmpty();
  spec.Int("reward.processes", &c.processes,
           "Processes of each function and program, requests at a time to each URL, programs of `code` at a time.")
      .AtLeast(1)
      .AtMost(256);
  spec.Int("reward.batch_size", &c.batch_size, "Most samples that a process or a URL is given at once.")
      .AtLeast(1)
      .AtMost(1 << 16);
  spec.Float(
          "reward.timeout", &c.timeout,
          "Seconds within which a process must give one more score; for a URL, seconds for each sample of a request.")
      .MoreThan(0)
      .AtMost(kMostSeconds);
  spec.Float("reward.start_timeout", &c.start_timeout, "Seconds within which a process must say hello.")
      .MoreThan(0)
      .AtMost(kMostSeconds);
  spec.Int("reward.retries", &c.retries, "How often a sample without a score is tried again.").AtLeast(0).AtMost(100);
  spec.Int("reward.max_restarts", &c.max_restarts,
           "How often in a row, without a score between, a program is started again before the run stops.")
      .AtLeast(0);
  spec.Float("reward.memory_gb", &c.memory_gb, "GiB of memory that a process may use with its children; 0: no limit.")
      .AtLeast(0)
      .AtMost(1 << 20);
  spec.Choice(
      "reward.on_error", &c.on_error, {{"stop", OnError::kStop}, {"score", OnError::kScore}, {"drop", OnError::kDrop}},
      "What becomes of a sample without a score: the run stops, it scores reward.error_score, or the step goes on "
      "without its prompt.");
  spec.Float("reward.error_score", &c.error_score, "What stands for a missing score.").AtLeast(-1e30).AtMost(1e30);
  spec.Unused(
      {"reward.error_score"}, [&c] { return c.on_error != OnError::kScore; },
      "no sample scores it; set reward.on_error to score");
  spec.Unused(
      {"reward.python"}, [&c] { return c.functions.empty(); }, "there is no reward.function");
  spec.Unused(
      {"reward.start_timeout", "reward.max_restarts", "reward.memory_gb"},
      [&c] { return c.used() && c.functions.empty() && c.programs.empty(); },
      "there is no reward.function and no reward.program");
  spec.Unused(
      {"reward.batch_size", "reward.timeout", "reward.retries"},
      [&c] { return c.used() && c.functions.empty() && c.programs.empty() && c.http.urls.empty(); },
      "there is no reward.function, no reward.program and no reward.url");
  spec.Unused(
      {"reward.processes", "reward.batch_size", "reward.timeout", "reward.start_timeout", "reward.retries",
       "reward.max_restarts", "reward.memory_gb", "reward.on_error"},
      [&c] { return !c.used(); },
      "no other program scores anything; set reward.function, reward.program, reward.url or reward.code.weight");
}

std::vector<std::string> SourceNames(const ExternalRewardConfig& config) {
  std::set<std::string> taken = {"exact", "number", "math", "regex", "format", "length"};
  std::map<std::string, int> numbers;  // the last that was tried
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    int& number = numbers.try_emplace(name, 1).first->second;
    std::string unique = number == 1 ? name : absl::StrCat(name, "_", ++number);
    while (!taken.insert(unique).second) unique = absl::StrCat(name, "_", ++number);
    names.push_back(unique);
  };
  for (const std::string& function : config.functions) add(BaseName(function, ':'));
  for (const std::string& program : config.programs) {
    const absl::StatusOr<std::vector<std::string>> words = SplitWords(program);
    add(BaseName(words.ok() ? words->front() : program, '/'));
  }
  for (const std::string& url : config.http.urls) add(BaseName(HttpSourceName(url).value_or(url), '\0'));
  if (config.code.weight != 0) add("code");
  return names;
}

absl::StatusOr<std::unique_ptr<Reward>> MakeRunReward(const RewardConfig& rules, const ExternalRewardConfig& external,
                                                      const std::vector<std::string>& columns, const LogSink& log) {
  if (!external.used()) return MakeReward(rules);
  std::unique_ptr<Reward> by_rule;
  if (HasRule(rules)) {
    TDOCK_ASSIGN_OR_RETURN(by_rule, MakeReward(rules));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<double> function_weights,
                         WeightsOf(external.function_weights, external.functions.size()));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<double> program_weights,
                         WeightsOf(external.program_weights, external.programs.size()));
  const std::vector<std::string> names = SourceNames(external);
  std::vector<WeightedSource> sources;
  const auto add = [&](std::vector<std::string> arguments, double weight, std::string origin,
                       absl::string_view script = {}) {
    ProgramOptions options = OptionsOf(external, columns, log);
    options.name = names[sources.size()];
    options.origin = std::move(origin);
    options.arguments = std::move(arguments);
    options.script = script;
    sources.push_back({.source = MakeProgramSource(std::move(options)), .weight = weight});
  };
  for (size_t i = 0; i < external.functions.size(); ++i) {
    TDOCK_RETURN_IF_ERROR(Annotate(CheckFunction(external.functions[i]), "reward.function"));
    add({external.python, "-c", ScriptReader("rewards.py"), external.functions[i]}, function_weights[i],
        absl::StrCat("reward.function = ", external.functions[i], ", reward.python = ", external.python),
        kRewardsModule);
  }
  for (size_t i = 0; i < external.programs.size(); ++i) {
    absl::StatusOr<std::vector<std::string>> words = SplitWords(external.programs[i]);
    if (!words.ok()) return Annotate(words.status(), "reward.program");
    add(*std::move(words), program_weights[i], absl::StrCat("reward.program = ", external.programs[i]));
  }
  TDOCK_RETURN_IF_ERROR(AddServers(external, names, log, sources));
  if (external.code.weight != 0) {
    TDOCK_ASSIGN_OR_RETURN(CodeOptions options, CodeOptionsOf(external.code, external.processes));
    options.name = names[sources.size()];
    TDOCK_ASSIGN_OR_RETURN(auto source, MakeCodeSource(options));
    sources.push_back({.source = std::move(source), .weight = external.code.weight});
  }
  return MakeCombinedReward(
      std::move(by_rule), std::move(sources),
      {.on_error = external.on_error, .score = static_cast<float>(external.error_score), .log = log});
}

}  // namespace tdock::reward
