#include "cli/train_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/executables.h"
#include "cli/interrupt.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/spec.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/run_start.h"
#include "trainer/preflight/numbers.h"
#include "trainer/preflight/preflight.h"
#include "trainer/preflight/report.h"
#include "trainer/recipes/recipes.h"

namespace tdock::cli {
namespace {

// Every key of a recipe, or of all of them.
absl::Status PrintKeys(const std::string& recipe_name) {
  if (recipe_name.empty()) {
    std::cout << trainer::KeyReference();
    return absl::OkStatus();
  }
  const auto recipe = trainer::MakeRecipe(recipe_name);
  TDOCK_RETURN_IF_ERROR(Refused(recipe.status()));
  config::Spec spec;
  (*recipe)->Bind(spec);
  std::cout << config::Reference(spec);
  return absl::OkStatus();
}

// "val/accuracy  0.310 → 0.970", for what was measured before and after.
void PrintValidation(const trainer::RunResult& result, const std::optional<at::ScalarType>& save_dtype) {
  bool is_rounded = false;
  for (const auto& [metric, last] : result.last) {
    std::cout << absl::StrFormat("%-18s ", metric);
    if (const auto first = result.first.find(metric); first != result.first.end()) {
      std::cout << absl::StrFormat("%.3f before, ", first->second);
    }
    std::cout << absl::StrFormat("%.3f at the end", last);
    const auto saved = result.saved.find(metric);
    if (saved != result.saved.end() && saved->second != last) {
      std::cout << absl::StrFormat(", %.3f as it was saved", saved->second);
      is_rounded = true;
    }
    std::cout << "\n";
  }
  if (is_rounded && save_dtype != at::kFloat) {
    std::cout << "(weights are rounded as they are saved; model.save_dtype=float32 saves them as they were trained)\n";
  }
}

// Number of prompts that are tried before the first step: 0 where another process answers, or they have been tried.
int64_t ProbedPrompts(const trainer::Recipe& recipe, const trainer::RunConfig& config) {
  const trainer::RolloutSection* const rollout = recipe.shape().rollout;
  const bool answers = rollout != nullptr && !config.servers.used() &&
                       !absl::c_linear_search(config.trainer.dock.external_stages, "rollout");
  if (!answers || trainer::GoesOn(Env::Real(), config.trainer)) return 0;
  return std::min(rollout->probe_prompts, config.data.train_batch_size);
}

// The preflight's figures go to the log; what would not work is refused.
absl::Status CheckBefore(trainer::Recipe& recipe, const trainer::RunInputs& inputs, trainer::NumberReport numbers,
                         const trainer::RunContext& context) {
  constexpr int64_t kReadSamples = 4096;
  constexpr absl::Duration kReadTime = absl::Seconds(1);
  std::map<std::string, int64_t> ranks;
  for (const char* role : {"actor", "critic"}) {
    if (const auto* const group = context.training_ranks(role).group; group != nullptr) ranks[role] = group->size();
  }
  TDOCK_ASSIGN_OR_RETURN(
      trainer::PreflightReport report,
      trainer::Preflight(recipe, inputs, std::move(numbers), Env::Real(), Clock::Real(),
                         {.reading = {.samples = kReadSamples, .time = kReadTime, .stop = context.stop},
                          .probed_prompts = ProbedPrompts(recipe, recipe.config()),
                          .probe_option = "rollout.probe_prompts",
                          .ranks = std::move(ranks)}));
  context.progress.End();
  std::erase_if(report.warnings, [&](const std::string& warning) {  // they were logged as the data were read
    return absl::c_linear_search(inputs.data.warnings, warning);
  });
  std::cerr << EscapeForTerminal(trainer::SummaryText(report));
  return absl::OkStatus();
}

void LogLine(const std::string& line) {
  // On a terminal, erases the line of the progress first. One write, so that lines of threads do not mix.
  std::cerr << absl::StrCat(::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "", EscapeForTerminal(line), "\n");
}

}  // namespace

CommandedRun::CommandedRun(std::unique_ptr<trainer::Recipe> recipe, std::vector<std::string> allow_changed)
    : recipe_(std::move(recipe)),
      progress_(trainer::ProgressOutput::StandardError(), Clock::Real()),
      context_{Env::Real(), Clock::Real(),           progress_, &InterruptFlag(), LogLine,
               &SaveFlag(), std::move(allow_changed)} {
  context_.give_up = [](const absl::Status& status) {
    std::cerr << "tdock train: " << EscapeForTerminal(status.message())
              << "\nIt does not end although it must, and so the process does, "
              << "without a report. The run goes on from its last checkpoint." << std::endl;
    std::_Exit(1);
  };
}

absl::StatusOr<std::unique_ptr<CommandedRun>> CommandedRun::Load(const TrainArguments& arguments) {
  absl::StatusOr<std::unique_ptr<trainer::Recipe>> recipe = arguments.run.Load();
  TDOCK_RETURN_IF_ERROR(Refused(recipe.status()));
  return std::unique_ptr<CommandedRun>(new CommandedRun(*std::move(recipe), arguments.allow_changed));
}

absl::Status CommandedRun::Train(trainer::RunContext context, const std::function<absl::Status()>& prepared) {
  const trainer::ProgressTicker ticker(progress_, Clock::Real());
  const auto prepare = [this](std::string what) {
    progress_.Begin("preparing", 0, 0, "");
    progress_.Doing(std::move(what));
  };
  trainer::NumberReport numbers = trainer::CheckNumbers(*recipe_);
  prepare("reading the model and the data");
  auto inputs = trainer::LoadRunInputs(*recipe_, Env::Real(), context.log);
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  prepare("checking the data, the memory and the rewards");
  const absl::Status checked = CheckBefore(*recipe_, *inputs, std::move(numbers), context);
  TDOCK_RETURN_IF_ERROR(absl::IsCancelled(checked) ? checked : Refused(checked));
  prepare("making the stages");
  const auto run = trainer::PrepareRun(*recipe_, *std::move(inputs), std::move(context));
  TDOCK_RETURN_IF_ERROR(Refused(run.status()));
  TDOCK_RETURN_IF_ERROR(Failed(prepared()));
  const absl::StatusOr<trainer::RunResult> result = (*run)->Train();
  TDOCK_RETURN_IF_ERROR(Failed(result.status()));
  PrintValidation(*result, recipe_->config().model.save_dtype);
  const std::string run_dir = EscapeUnprintable(result->run_dir);
  std::cout << "run directory      " << run_dir << "\n"
            << "report             " << run_dir << "/report.html\n";
  if (!result->checkpoint.empty()) {  // as with trainer.val_only
    std::cout << "checkpoint         " << EscapeUnprintable(result->checkpoint) << "\n";
  }
  return absl::OkStatus();
}

absl::Status TrainAlone(const TrainArguments& arguments, const std::function<absl::Status()>& elsewhere) {
  if (arguments.keys) return PrintKeys(arguments.run.config_path);
  const auto environment = runtime::RankEnvironment::Read(::getenv);
  TDOCK_RETURN_IF_ERROR(Refused(environment.status()));
  const bool has_ranks = environment->has_value() && (*environment)->world_size > 1;
  if (has_ranks || !arguments.page.empty()) return elsewhere();
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<CommandedRun> run, CommandedRun::Load(arguments));
  if (run->recipe().config().trainer.dock.shared()) return elsewhere();
  return run->Train(run->context(), [] { return absl::OkStatus(); });
}

Command AddTrain(CLI::App& app, std::function<absl::Status(const TrainArguments&)> train) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = AddSubcommand(app, "train");
  arguments->run.AddTo(*command, "YAML file with the configuration; with --keys: a recipe");
  arguments->run.serve.option =
      command->add_flag("--serve{unix}", arguments->run.serve.value,
                        "Serve the run's dock, to look at it with `tdock dock` and for stages of other processes, at a "
                        "Unix socket; short "
                        "for trainer.serve=unix, --serve=HOST:PORT for trainer.serve=HOST:PORT");
  command
      ->add_option(
          "--page", arguments->page,
          "Serve a page that shows the run in a browser while it works: curves, samples, what each stage does and "
          "waits "
          "for, the machine's load. PORT or :PORT, for this machine only, or HOST:PORT, an address of this machine "
          "that "
          "others reach, who can then read all of it; port 0 picks a free one. `tdock runs page` shows runs of other "
          "processes, and those that have ended")
      ->type_name("[HOST]:PORT");
  command
      ->add_option("--allow-changed", arguments->allow_changed,
                   "A key that has changed since the checkpoint that the run goes on from was saved, or model, data, "
                   "tokenizer or template for their contents; may be repeated")
      ->allow_extra_args(false);
  command->add_flag(
      "--keys", arguments->keys,
      "Print every key of the recipes, or of the one that is named, with its default and meaning, and stop");
  command->final_callback([arguments] {
    if (arguments->run.config_path.empty() && !arguments->keys) {
      throw CLI::ValidationError(
          "there is no configuration file; `tdock init` writes one; then, for example: tdock train sft.yaml");
    }
  });
  return [arguments, train = std::move(train)] { return train(*arguments); };
}

int RunTdock(int argc, char** argv) {
  const auto add_train = [argv](CLI::App& app) {
    return AddTrain(app, [argv](const TrainArguments& arguments) {
      return TrainAlone(arguments, [argv] { return RunOtherExecutable(argv); });
    });
  };
  return RunCommands(argc, argv,
                     {{"init", AddInit},
                      {"train", add_train},
                      {"generate", AddGenerate},
                      {"tokenize", AddTokenize},
                      {"explain", AddExplain}});
}

}  // namespace tdock::cli
