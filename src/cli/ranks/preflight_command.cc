#include "core/base/utf8.h"
#include "trainer/preflight/preflight.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/run_arguments.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/distributed/placement.h"
#include "trainer/preflight/numbers.h"
#include "trainer/preflight/report.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

struct PreflightArguments {
  RunArguments run;
  int64_t probed_prompts = 0;  // 0: no probe
  int ranks = 0;               // 0: as the environment says
};

// The ranks that would train together, by role.
absl::StatusOr<std::map<std::string, int64_t>> TrainingRanksOf(trainer::Recipe& recipe, int asked) {
  runtime::RankEnvironment environment{.world_size = asked, .local_world_size = asked};
  if (asked == 0) {
    TDOCK_ASSIGN_OR_RETURN(const auto read, runtime::RankEnvironment::Read(::getenv));
    environment = read.value_or(runtime::RankEnvironment());
  }
  std::map<std::string, int64_t> ranks;
  if (environment.world_size < 2) return ranks;
  TDOCK_ASSIGN_OR_RETURN(const trainer::RanksOfRoles roles, trainer::Place(recipe.config(), environment));
  for (const char* role : {"actor", "critic"}) ranks[role] = std::ssize(roles.at(role));
  return ranks;
}

// Nothing is written but a cache of data, whose files come whole or not at all, so an interrupt may end it anywhere:
// there is no handler.
absl::Status Preflight(const PreflightArguments& arguments) {
  const auto recipe = arguments.run.Load();
  TDOCK_RETURN_IF_ERROR(Refused(recipe.status()));
  const int64_t probed = arguments.probed_prompts;
  if (probed > 0) TDOCK_RETURN_IF_ERROR(Refused(trainer::CheckProbe(**recipe, (*recipe)->config().recipe)));
  const auto ranks = TrainingRanksOf(**recipe, arguments.ranks);
  TDOCK_RETURN_IF_ERROR(Refused(ranks.status()));
  trainer::NumberReport numbers = trainer::CheckNumbers(**recipe);
  std::cout << EscapeForTerminal(trainer::NumbersText(numbers)) << std::flush;

  const auto log = [](const std::string& line) { std::cerr << EscapeForTerminal(line) << "\n"; };
  const auto inputs = trainer::LoadRunInputs(**recipe, Env::Real(), log);
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  trainer::Progress progress(trainer::ProgressOutput::StandardError(), Clock::Real());
  const auto report =
      trainer::Preflight(**recipe, *inputs, std::move(numbers), Env::Real(), Clock::Real(),
                         {.reading = {.progress = &progress}, .probed_prompts = probed, .ranks = *ranks});
  TDOCK_RETURN_IF_ERROR(Refused(report.status()));
  TDOCK_ASSIGN_OR_RETURN(
      const std::string text,
      trainer::ReportText(*report, *inputs->tokenizer, (*recipe)->shape().rollout, ::isatty(STDOUT_FILENO) == 1));
  std::cout << text;
  return absl::OkStatus();
}

}  // namespace

Command AddPreflight(CLI::App& app) {
  auto arguments = std::make_shared<PreflightArguments>();
  CLI::App* command = AddSubcommand(app, "preflight");
  arguments->run.AddTo(*command, "YAML file with the configuration");
  command->get_option("config")->required();
  command
      ->add_flag("--probe{8}", arguments->probed_prompts,
                 "Also answer 8 prompts, or --probe=N, with the rollout's settings, and score the answers")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command
      ->add_option("--ranks", arguments->ranks,
                   "Of a run of so many processes: what each of those keeps that train together; default: WORLD_SIZE")
      ->check(CLI::Range(1, 1 << 16));
  return [arguments] { return Preflight(*arguments); };
}

}  // namespace tdock::cli
