#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "trainer/recipes/grpo.h"
#include "trainer/recipes/grpo_config.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

// A key of the configuration with an option of its own. An empty value counts as given.
struct Shortcut {
  std::string value;
  const CLI::Option* option = nullptr;
};

struct TrainArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  Shortcut seed, run_dir, device, threads;
  bool keys = false;
};

absl::Status Train(const TrainArguments& arguments) {
  trainer::GrpoConfig config;
  config::Spec spec;
  trainer::Bind(spec, config);
  if (arguments.keys) {
    std::cout << config::Reference(spec);
    return absl::OkStatus();
  }
  std::vector<std::string> overrides = arguments.overrides;
  const auto add = [&](const char* key, const Shortcut& given) {
    if (given.option->count() > 0) overrides.push_back(absl::StrCat(key, "=", given.value));
  };
  add("seed", arguments.seed);
  add("trainer.run_dir", arguments.run_dir);
  add("device", arguments.device);
  add("threads", arguments.threads);
  TDOCK_RETURN_IF_ERROR(Refused(config::LoadFile(Env::Real(), spec, arguments.config_path, overrides)));

  trainer::Progress progress(trainer::ProgressOutput::StandardError(), Clock::Real());
  const auto run = trainer::PrepareGrpo(config, {Env::Real(), Clock::Real(), progress, &InterruptFlag()});
  TDOCK_RETURN_IF_ERROR(Refused(run.status()));
  const absl::StatusOr<trainer::GrpoResult> result = (*run)->Run();
  TDOCK_RETURN_IF_ERROR(Failed(result.status()));
  std::cout << absl::StrFormat("held-out accuracy  %.3f after the warm-up, %.3f at the end\n", result->warmup_accuracy,
                               result->final_accuracy)
            << "run directory      " << result->run_dir << "\n"
            << "report             " << result->run_dir << "/report.html\n"
            << "checkpoint         " << result->run_dir << "/checkpoint\n";
  return absl::OkStatus();
}

}  // namespace

Command AddTrain(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Trains a model as described in a configuration file.");
  command->add_option("config", arguments->config_path, "YAML file with the configuration");
  command->add_option("overrides", arguments->overrides,
                      "Overrides of the file, key=value, for any key of the configuration");
  arguments->seed.option = command->add_option("--seed", arguments->seed.value, "Short for seed=…");
  arguments->run_dir.option = command->add_option("--run-dir", arguments->run_dir.value, "Short for trainer.run_dir=…");
  arguments->device.option = command->add_option("--device", arguments->device.value, "Short for device=…");
  arguments->threads.option = command->add_option("--threads", arguments->threads.value, "Short for threads=…");
  command->add_flag("--keys", arguments->keys, "Print every key with its default and meaning, and stop");
  command->final_callback([arguments] {
    if (arguments->config_path.empty() && !arguments->keys) throw CLI::RequiredError("config");
  });
  return [arguments] { return Train(*arguments); };
}

}  // namespace tdock::cli
