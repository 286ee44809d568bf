#include "cli/run_arguments.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/utf8.h"
#include "trainer/preflight/numbers.h"

namespace tdock::cli {

void RunArguments::AddTo(CLI::App& command, const std::string& what) {
  command.add_option("config", config_path, what);
  command.add_option("overrides", overrides, "Overrides of the file, key=value, for any key of the configuration");
  seed.option = command.add_option("--seed", seed.value, "Short for seed=…");
  run_dir.option = command.add_option("--run-dir", run_dir.value, "Short for trainer.run_dir=…");
  device.option = command.add_option("--device", device.value, "Short for device=…");
  threads.option = command.add_option("--threads", threads.value, "Short for threads=…");
  command.add_flag(
      "--lenient", lenient,
      "Skip keys that are unknown or mean nothing here, such as verl's about several machines, with a note");
}

std::vector<std::string> RunArguments::Given() const {
  std::vector<std::string> given = overrides;
  const std::pair<const char*, const Shortcut*> shortcuts[] = {{"seed", &seed},
                                                               {"trainer.run_dir", &run_dir},
                                                               {"device", &device},
                                                               {"threads", &threads},
                                                               {"trainer.serve", &serve}};
  for (const auto& [key, shortcut] : shortcuts) {
    if (shortcut->option != nullptr && shortcut->option->count() > 0)
      given.push_back(absl::StrCat(key, "=", shortcut->value));
  }
  return given;
}

absl::StatusOr<std::unique_ptr<trainer::Recipe>> RunArguments::Load() const {
  const auto note = [](const std::string& line) { std::cerr << "note: " << EscapeForTerminal(line) << "\n"; };
  return trainer::LoadRecipeWithNumbers(Env::Real(), config_path, Given(), {.lenient = lenient, .note = note});
}

}  // namespace tdock::cli
