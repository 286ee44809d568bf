// The subcommands of `tdock`. Each adds itself to the command line and returns the function that runs it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/command/command.h"

namespace tdock::cli {

using command::Command;
using command::EndedWith;
using command::Failed;
using command::Refused;

Command AddInit(CLI::App& app);
Command AddPreflight(CLI::App& app);
Command AddTrain(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddChat(CLI::App& app);
Command AddServe(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddMerge(CLI::App& app);
Command AddRuns(CLI::App& app);
Command AddExplain(CLI::App& app);
// `program` is what TakeProgram() has returned.
Command AddLaunch(CLI::App& app, std::vector<std::string> program);

// Of a command line `tdock launch … -- PROGRAM ARGUMENTS…`: the program and its arguments, which it removes from
// `argc`. Otherwise nothing.
std::vector<std::string> TakeProgram(int& argc, char** argv);

// Subcommands that are executables of their own: tdock-NAME, in the folder of `tdock` or in ../libexec.
void DescribeOtherExecutables(CLI::App& app);
bool IsOtherExecutable(absl::string_view name);
// Replaces this process by tdock-NAME with these arguments, the name first and null last. Returns only on failure.
absl::Status RunOtherExecutable(char** arguments);

}  // namespace tdock::cli
