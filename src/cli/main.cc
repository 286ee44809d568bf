// The executable `tdock`: what a run of one process and questions to its model need. Everything else takes long to
// compile, and is in executables of its own.
#include "cli/commands.h"
#include "cli/train_command.h"

int main(int argc, char** argv) {
  using tdock::cli::TrainArguments;
  const auto add_train = [argv](CLI::App& app) {
    return tdock::cli::AddTrain(app, [argv](const TrainArguments& arguments) {
      return NeedsRanksOrPage(arguments) ? tdock::cli::RunOtherExecutable(argv) : tdock::cli::TrainAlone(arguments);
    });
  };
  return tdock::cli::RunCommands(argc, argv,
                                 {{"init", tdock::cli::AddInit},
                                  {"train", add_train},
                                  {"generate", tdock::cli::AddGenerate},
                                  {"tokenize", tdock::cli::AddTokenize},
                                  {"explain", tdock::cli::AddExplain}});
}
