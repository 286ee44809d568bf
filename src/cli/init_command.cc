#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "trainer/recipes/first_config.h"

namespace tdock::cli {
namespace {

struct InitArguments {
  std::string recipe, model, data, out;
};

absl::Status Init(const InitArguments& arguments) {
  Env& env = Env::Real();
  if (!arguments.out.empty() && env.Exists(arguments.out)) {
    return Refused(absl::AlreadyExistsError(
        absl::StrCat(arguments.out, " exists, and is not overwritten; choose another name for --out")));
  }
  const auto yaml = trainer::FirstConfig(env, arguments.recipe, arguments.model, arguments.data);
  TDOCK_RETURN_IF_ERROR(Refused(yaml.status()));
  if (arguments.out.empty()) {
    std::cout << *yaml;
    return absl::OkStatus();
  }
  TDOCK_RETURN_IF_ERROR(Failed(WriteFileAtomically(env, arguments.out, *yaml)));
  std::cout << "wrote " << arguments.out << "; now: tdock train " << arguments.out << "\n";
  return absl::OkStatus();
}

}  // namespace

Command AddInit(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  CLI::App* command = AddSubcommand(app, "init");
  command->add_option("recipe", arguments->recipe, "sft or grpo")->required();
  command->add_option("--model", arguments->model, "Folder of a model in the Hugging Face layout")->required();
  command->add_option("--data", arguments->data, "File to train on: JSON lines, JSON, CSV, Parquet or text")
      ->required();
  command->add_option("--out", arguments->out, "File to write; otherwise standard output");
  return [arguments] { return Init(*arguments); };
}

}  // namespace tdock::cli
