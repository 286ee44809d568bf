// The executable tdock-launch.
#include "cli/ranks/commands.h"
#include "cli/train_command.h"

int main(int argc, char** argv) {
  const auto add_train = [](CLI::App& app) { return tdock::cli::AddTrain(app, tdock::cli::TrainWithRanksAndPage); };
  const auto add_launch = [program = tdock::cli::TakeProgram(argc, argv)](CLI::App& app) {
    return tdock::cli::AddLaunch(app, program);
  };
  return tdock::cli::RunCommands(
      argc, argv, {{"preflight", tdock::cli::AddPreflight}, {"train", add_train}, {"launch", add_launch}});
}
