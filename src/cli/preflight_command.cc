#include "trainer/preflight/preflight.h"

#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/run_arguments.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "trainer/preflight/numbers.h"
#include "trainer/preflight/report.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

struct PreflightArguments {
  RunArguments run;
  int64_t probed_prompts = 0;  // 0: no probe
};

// Nothing is written but a cache of data, whose files come whole or not at all, so an interrupt may end it anywhere:
// there is no handler.
absl::Status Preflight(const PreflightArguments& arguments) {
  const auto recipe = arguments.run.Load();
  TDOCK_RETURN_IF_ERROR(Refused(recipe.status()));
  const int64_t probed = arguments.probed_prompts;
  if (probed > 0) TDOCK_RETURN_IF_ERROR(Refused(trainer::CheckProbe(**recipe, (*recipe)->config().recipe)));
  trainer::NumberReport numbers = trainer::CheckNumbers(**recipe);
  std::cout << trainer::NumbersText(numbers) << std::flush;

  const auto log = [](const std::string& line) { std::cerr << line << "\n"; };
  const auto inputs = trainer::LoadRunInputs(**recipe, Env::Real(), log);
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  trainer::Progress progress(trainer::ProgressOutput::StandardError(), Clock::Real());
  const auto report = trainer::Preflight(**recipe, *inputs, std::move(numbers), Env::Real(), Clock::Real(),
                                         {.reading = {.progress = &progress}, .probed_prompts = probed});
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
  CLI::App* command = app.add_subcommand(
      "preflight",
      "Says what a run will do before it does anything: the numbers that follow from the configuration, what the data "
      "holds, what is trained on, and the memory that it takes. `tdock train` checks the same.");
  arguments->run.AddTo(*command, "YAML file with the configuration");
  command->get_option("config")->required();
  command
      ->add_flag("--probe{8}", arguments->probed_prompts,
                 "Also answer 8 prompts, or --probe=N, with the rollout's settings, and score the answers")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  return [arguments] { return Preflight(*arguments); };
}

}  // namespace tdock::cli
