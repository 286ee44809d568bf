// The command `tdock dock`: its verbs, options and exit codes.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "dock/service/console/connect.h"
#include "dock/service/console/serve_options.h"

namespace tdock::console {

// What the command needs from outside.
struct Wiring {
  Connect connect = {};
  Serve serve = {};
  // An environment variable, if it is set.
  std::function<std::optional<std::string>(const char* name)> variable = {};
  unsigned uid = 0;
  std::string version = {};
};

// Prints results on `out` and errors on `err`. The exit code is that of tdock's other commands: 0; 2 if the call must
// be fixed (invalid options, InvalidArgument, NotFound, AlreadyExists, Unimplemented); 130 if it was cancelled; 1 for
// any other error, including a failure to write to `out`.
int RunCommandLine(int argc, const char* const* argv, const Wiring& wiring, std::ostream& out, std::ostream& err);

}  // namespace tdock::console
