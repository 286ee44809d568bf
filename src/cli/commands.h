// The subcommands of `tdock`. Each adds itself to the command line and returns the function that runs it.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace tdock::cli {

using Command = std::function<absl::Status()>;

Command AddTrain(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddBench(CLI::App& app);

}  // namespace tdock::cli
