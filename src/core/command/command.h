// What the executables `tdock` and `tdock-bench` share: subcommands and exit codes.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::command {

// What runs once the command line has been parsed.
using Command = std::function<absl::Status()>;

// For a command whose exit code tells when it failed rather than how: 2 before any work has begun, because then the
// call must be fixed, even if the cause is an unreadable file; 1 from then on.
absl::Status Refused(const absl::Status& status);
absl::Status Failed(const absl::Status& status);

// For a command that ends with the exit code of another program, from 1 to 255.
absl::Status EndedWith(int exit_code, absl::string_view message);

// A positional option of a subcommand with the name "overrides" stands for key=value, which is then suggested for
// --key=value.
//
// The exit code of the program: 0 if everything was parsed and `run` succeeded, or only help was requested. Otherwise
// the error is printed on standard error after the name of the program, with what is unprintable escaped, and the code
// is 2 for a command line that cannot be parsed, which is reported with what it may have meant, and for
// InvalidArgument, NotFound, AlreadyExists and Unimplemented, 130 for Cancelled, that of EndedWith(), and 1 for any
// other error.
int ParseAndRun(CLI::App& app, int argc, char** argv, const Command& run);

}  // namespace tdock::command
