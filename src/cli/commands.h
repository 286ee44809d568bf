// The subcommands of `tdock`, some of which are in executables of their own.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/command/command.h"

namespace tdock::cli {

using command::Command;
using command::EndedWith;
using command::Failed;
using command::Refused;

// The name of a subcommand, and the function that adds it to the command line and returns what it runs.
using NamedCommand = std::pair<std::string, std::function<Command(CLI::App&)>>;

// The main function of an executable with these subcommands. The help has all subcommands of `tdock`; one of another
// executable is run by that.
int RunCommands(int argc, char** argv, const std::vector<NamedCommand>& own);

// Adds the subcommand with its description in the help of `tdock`.
CLI::App* AddSubcommand(CLI::App& app, const std::string& name);

// Replaces this process by the executable that has the subcommand argv[1] and, for `train`, whatever a run can ask for.
// Returns only on failure: NotFound names where the executable was looked for and how it is built.
absl::Status RunOtherExecutable(char** argv);

struct TrainArguments;  // cli/train_command.h

Command AddInit(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddExplain(CLI::App& app);

// In tdock-serve (cli/inference), tdock-runs (cli/runs) and tdock-launch (cli/ranks).
Command AddChat(CLI::App& app);
Command AddMerge(CLI::App& app);
Command AddPreflight(CLI::App& app);

// Trains as the rank that the environment names, alone or with the others of the run, and shows the run on a page.
absl::Status TrainWithRanksAndPage(const TrainArguments& arguments);

}  // namespace tdock::cli
