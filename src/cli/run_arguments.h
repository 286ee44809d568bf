// The arguments with which `tdock train` and `tdock preflight` name a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands.h"
#include "trainer/loop/recipe.h"

namespace tdock::cli {

struct RunArguments {
  // A key of the configuration with an option of its own. An empty value counts as given.
  struct Shortcut {
    std::string value;
    const CLI::Option* option = nullptr;  // where the command has it
  };
  std::string config_path;
  std::vector<std::string> overrides;
  Shortcut seed, run_dir, device, threads, serve;
  bool lenient = false;

  // Adds all but --serve. `what` is said of the first one: "YAML file with the configuration". `this` must outlive the
  // command.
  void AddTo(CLI::App& command, const std::string& what);
  // As key=value: the overrides, and the options that stand for one.
  std::vector<std::string> Given() const;
  // The recipe that they configure; what was skipped goes to standard error. The errors of
  // trainer::LoadRecipeWithNumbers().
  absl::StatusOr<std::unique_ptr<trainer::Recipe>> Load() const;
};

}  // namespace tdock::cli
