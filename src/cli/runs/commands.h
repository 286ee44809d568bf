// Commands for the folders of runs.
#pragma once

#include "cli/commands.h"

namespace tdock::cli {

Command AddMerge(CLI::App& app);
Command AddRuns(CLI::App& app);

}  // namespace tdock::cli
