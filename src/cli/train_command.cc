#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/page.h"
#include "cli/run_arguments.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/distributed/run_ranks.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/train.h"
#include "trainer/preflight/numbers.h"
#include "trainer/preflight/preflight.h"
#include "trainer/preflight/report.h"
#include "trainer/recipes/recipes.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

struct TrainArguments {
  RunArguments run;
  std::vector<std::string> allow_changed;
  std::string page;
  bool keys = false;
};

// Every key of a recipe, or of all of them.
absl::Status PrintKeys(const std::string& recipe_name) {
  for (const trainer::RecipeEntry& entry : trainer::Recipes()) {
    if (!recipe_name.empty() && recipe_name != entry.name) continue;
    const std::unique_ptr<trainer::Recipe> recipe = entry.make();
    config::Spec spec;
    recipe->Bind(spec);
    std::cout << "## " << entry.name << ": " << entry.summary << "\n\n" << config::Reference(spec) << "\n";
  }
  if (recipe_name.empty()) return absl::OkStatus();
  return Refused(trainer::MakeRecipe(recipe_name).status());
}

// "val/accuracy  0.310 → 0.970", for what was measured before and after.
void PrintValidation(const trainer::RunResult& result) {
  for (const auto& [metric, last] : result.last) {
    std::cout << absl::StrFormat("%-18s ", metric);
    if (const auto first = result.first.find(metric); first != result.first.end()) {
      std::cout << absl::StrFormat("%.3f before, ", first->second);
    }
    std::cout << absl::StrFormat("%.3f at the end", last);
    const auto saved = result.saved.find(metric);
    if (saved != result.saved.end() && saved->second != last) {
      std::cout << absl::StrFormat(", %.3f as it was saved", saved->second);
    }
    std::cout << "\n";
  }
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
      const trainer::PreflightReport report,
      trainer::Preflight(
          recipe, inputs, std::move(numbers), Env::Real(), Clock::Real(),
          {.reading = {.samples = kReadSamples, .time = kReadTime, .stop = context.stop}, .ranks = std::move(ranks)}));
  std::cerr << trainer::SummaryText(report);
  return absl::OkStatus();
}

// Reads, checks and trains, shown by `page` if there is one; with `ranks`, together with the other processes of the
// run.
absl::StatusOr<trainer::RunResult> TrainHere(trainer::Recipe& recipe, trainer::RunContext context,
                                             trainer::PageServer* page, trainer::RunRanks* ranks) {
  if (ranks != nullptr) ranks->AddTo(context);
  trainer::NumberReport numbers = trainer::CheckNumbers(recipe);
  auto inputs = trainer::LoadRunInputs(recipe, Env::Real(), context.log);
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  const absl::Status checked = CheckBefore(recipe, *inputs, std::move(numbers), context);
  TDOCK_RETURN_IF_ERROR(absl::IsCancelled(checked) ? checked : Refused(checked));
  const auto run = trainer::PrepareRun(recipe, *std::move(inputs), std::move(context));
  TDOCK_RETURN_IF_ERROR(Refused(run.status()));
  const absl::Status ready = ranks == nullptr ? absl::OkStatus() : ranks->AwaitReady();
  TDOCK_RETURN_IF_ERROR(Failed(ready));
  if (page != nullptr) page->Follow(recipe.config().trainer.run_dir);  // which has its folder by now
  absl::StatusOr<trainer::RunResult> result = (*run)->Train();
  if (!result.ok()) return Failed(result.status());
  return result;
}

// One of several processes. What ends it is the end of all of them.
absl::StatusOr<trainer::RunResult> TrainTogether(trainer::Recipe& recipe, const trainer::RunContext& context,
                                                 trainer::PageServer* page,
                                                 const runtime::RankEnvironment& environment) {
  const auto ranks = trainer::RunRanks::Open(recipe, environment, context);
  TDOCK_RETURN_IF_ERROR(Refused(ranks.status()));
  absl::StatusOr<trainer::RunResult> result = TrainHere(recipe, context, page, ranks->get());
  (*ranks)->End(result.status());
  return result;
}

absl::Status Train(const TrainArguments& arguments) {
  if (arguments.keys) return PrintKeys(arguments.run.config_path);
  const auto environment = runtime::RankEnvironment::Read(::getenv);
  TDOCK_RETURN_IF_ERROR(Refused(environment.status()));
  const auto recipe = arguments.run.Load();
  TDOCK_RETURN_IF_ERROR(Refused(recipe.status()));

  const std::string begin = ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";  // of a line that may have the progress
  const auto log = [begin](const std::string& line) { std::cerr << absl::StrCat(begin, line, "\n"); };
  trainer::Progress progress(trainer::ProgressOutput::StandardError(), Clock::Real());
  trainer::RunContext context{Env::Real(), Clock::Real(),          progress, &InterruptFlag(), log,
                              &SaveFlag(), arguments.allow_changed};
  context.give_up = [](const absl::Status& status) {
    std::cerr << "tdock train: " << status.message() << "\nIt does not end although it must, and so the process does, "
              << "without a report. The run goes on from its last checkpoint." << std::endl;
    std::_Exit(1);
  };
  std::unique_ptr<trainer::PageServer> page;
  const bool is_first = !environment->has_value() || (*environment)->rank == 0;
  if (!arguments.page.empty() && is_first) {
    auto opened = OpenPage("", arguments.page);
    TDOCK_RETURN_IF_ERROR(Refused(opened.status()));
    page = *std::move(opened);
    log(absl::StrCat("the page of this run is at ", page->url()));
  }
  const bool together = environment->has_value() && (*environment)->world_size > 1;
  if (together && (*environment)->rank > 0) return Failed(trainer::ServeRun(**recipe, **environment, context));
  const absl::StatusOr<trainer::RunResult> result = together
                                                        ? TrainTogether(**recipe, context, page.get(), **environment)
                                                        : TrainHere(**recipe, std::move(context), page.get(), nullptr);
  TDOCK_RETURN_IF_ERROR(result.status());
  PrintValidation(*result);
  std::cout << "run directory      " << result->run_dir << "\n"
            << "report             " << result->run_dir << "/report.html\n"
            << "checkpoint         " << result->run_dir << "/checkpoint\n";
  return absl::OkStatus();
}

}  // namespace

Command AddTrain(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Trains a model as described in a configuration file.");
  arguments->run.AddTo(*command, "YAML file with the configuration; with --keys: a recipe");
  arguments->run.serve.option =
      command->add_flag("--serve{unix}", arguments->run.serve.value,
                        "Serve the run's dock, to look at it with `tdock dock` and for stages of other processes, at a "
                        "Unix socket; short "
                        "for trainer.serve=unix, --serve=HOST:PORT for trainer.serve=HOST:PORT");
  command->add_option("--page", arguments->page, kPageHelp)->type_name("[HOST]:PORT");
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
  return [arguments] { return Train(*arguments); };
}

}  // namespace tdock::cli
