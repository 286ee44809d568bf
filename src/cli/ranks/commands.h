// Commands for runs of several ranks: launch, preflight, train.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/train_command.h"

namespace tdock::cli {

Command AddPreflight(CLI::App& app);
// `program` is what TakeProgram() has returned.
Command AddLaunch(CLI::App& app, std::vector<std::string> program);

// The program and its arguments of a command line `tdock launch … -- PROGRAM ARGUMENTS…`, which it removes from `argc`.
// Empty for any other command line.
std::vector<std::string> TakeProgram(int& argc, char** argv);

// Trains as the rank that the environment names, alone or with the others of the run, and shows the run on a page.
absl::Status TrainWithRanksAndPage(const TrainArguments& arguments);

}  // namespace tdock::cli
