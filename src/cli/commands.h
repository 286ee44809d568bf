// The subcommands of `tdock`. Each adds itself to the command line and returns the function that runs it.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace tdock::cli {

// main() exits with 2 for InvalidArgument, NotFound, AlreadyExists and Unimplemented, with 130 for Cancelled, and with
// 1 for any other error.
using Command = std::function<absl::Status()>;

// Where a command can tell, the exit code says when it failed rather than how: 2 before any work has begun, because it
// is the call that must be mended, be it a file that may not be read; 1 from then on.
absl::Status Refused(const absl::Status& status);
absl::Status Failed(const absl::Status& status);

Command AddTrain(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddBench(CLI::App& app);

// `tdock dock` is an executable of its own, tdock-dock, which needs no libtorch. It lies in the folder of `tdock`, or
// in ../libexec.
void DescribeDock(CLI::App& app);
// Puts it in the place of this process, with these arguments, the name first and null last. Returns only where that
// fails.
absl::Status RunDock(char** arguments);

}  // namespace tdock::cli
