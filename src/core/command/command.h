// What the executables `tdock` and `tdock-bench` share: subcommands and exit codes.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace tdock::command {

// What runs once the command line has been parsed.
using Command = std::function<absl::Status()>;

// Where a command can tell, the exit code says when it failed rather than how: 2 before any work has begun, because it
// is the call that must be mended, be it a file that may not be read; 1 from then on.
absl::Status Refused(const absl::Status& status);
absl::Status Failed(const absl::Status& status);

// The exit code of the program: 0 where everything was parsed and `run` succeeded, or only help was asked for; else the
// error is on standard error, after the name of the program, and the code is 2 for a command line that cannot be parsed
// and for InvalidArgument, NotFound, AlreadyExists and Unimplemented, 130 for Cancelled, and 1 for any other error.
int ParseAndRun(CLI::App& app, int argc, char** argv, const Command& run);

}  // namespace tdock::command
