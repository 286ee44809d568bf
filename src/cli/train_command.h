// `tdock train`, for the executables that train in one process, and as one rank of several.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/run_arguments.h"
#include "core/command/command.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/run_context.h"
#include "trainer/loop/train.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {

struct TrainArguments {
  RunArguments run;
  std::vector<std::string> allow_changed;
  std::string page;
  bool keys = false;
};

command::Command AddTrain(CLI::App& app, std::function<absl::Status(const TrainArguments&)> train);

// Trains in this process alone, or prints the keys if they are asked for. `elsewhere` carries out a run of several
// ranks, with a page, or with a shared dock.
absl::Status TrainAlone(const TrainArguments& arguments, const std::function<absl::Status()>& elsewhere);

// The run that a command line asks for, with the terminal as its log and progress, and signals as its stop requests.
class CommandedRun {
 public:
  static absl::StatusOr<std::unique_ptr<CommandedRun>> Load(const TrainArguments& arguments);

  trainer::Recipe& recipe() { return *recipe_; }
  const trainer::RunContext& context() const { return context_; }

  // Reads, checks, prepares and trains, in `context`, and prints the result. `prepared` is called once the run has its
  // folder, before the first step; an error of it ends the run.
  absl::Status Train(trainer::RunContext context, const std::function<absl::Status()>& prepared);

 private:
  CommandedRun(std::unique_ptr<trainer::Recipe> recipe, std::vector<std::string> allow_changed);

  const std::unique_ptr<trainer::Recipe> recipe_;
  trainer::Progress progress_;
  trainer::RunContext context_;
};

}  // namespace tdock::cli
