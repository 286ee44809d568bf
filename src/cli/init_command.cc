#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/recipes/first_config.h"
#include "trainer/recipes/recipes.h"

namespace tdock::cli {
namespace {

struct InitArguments {
  trainer::FirstConfigOptions options;
  std::string out;
};

absl::Status Init(const InitArguments& arguments) {
  Env& env = Env::Real();
  const auto& [options, out] = arguments;
  if (!out.empty() && env.Exists(out)) {
    return Refused(absl::AlreadyExistsError(
        absl::StrCat(EscapeUnprintable(out), " exists, and is not overwritten; choose another name for --out")));
  }
  const auto note = [](const std::string& line) { std::cerr << "note: " << EscapeForTerminal(line) << "\n"; };
  const auto yaml = trainer::FirstConfig(env, options, note);
  TDOCK_RETURN_IF_ERROR(Refused(yaml.status()));
  if (out.empty()) {
    std::cout << *yaml;
    return absl::OkStatus();
  }
  TDOCK_RETURN_IF_ERROR(Failed(WriteFileAtomically(env, out, *yaml)));
  TDOCK_ASSIGN_OR_RETURN(const auto recipe, trainer::MakeRecipe(options.recipe));
  const bool answers = recipe->phase() == data::Phase::kPrompt;
  const std::string shown = EscapeUnprintable(out);
  std::cout << "wrote " << shown << "; look at what it will do, then train:\n  tdock preflight " << shown
            << (answers ? " --probe" : "") << "\n  tdock train " << shown << "\n";
  return absl::OkStatus();
}

}  // namespace

Command AddInit(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  trainer::FirstConfigOptions& options = arguments->options;
  CLI::App* command = AddSubcommand(app, "init");
  const std::string recipes = absl::StrJoin(
      trainer::Recipes(), ", ", [](std::string* text, const auto& recipe) { absl::StrAppend(text, recipe.name); });
  command->add_option("recipe", options.recipe, "One of " + recipes)->required();
  command->add_option("--model", options.model, "Folder of a model in the Hugging Face layout")->required();
  command->add_option("--data", options.data, "File to train on: JSON lines, JSON, CSV, Parquet or text")->required();
  command->add_option("--reward-function", options.reward_function,
                      "Python function FILE.py:NAME that scores answers; the data then need no right ones");
  command->add_option("--environment", options.environment,
                      "Environment that the model talks with while it answers, and that scores the talk: a class "
                      "FILE.py:NAME or a URL, for which the data need no right answers, or calculator, which is built "
                      "in");
  command->add_option("--out", arguments->out, "File to write; otherwise standard output");
  return [arguments] { return Init(*arguments); };
}

}  // namespace tdock::cli
