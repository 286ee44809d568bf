// The command `tdock dock`: its verbs, options and exit codes.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "dock/service/console/connect.h"
#include "dock/service/console/serve_options.h"

namespace tdock::console {

// What the command cannot do by itself.
struct Wiring {
  Connect connect = {};
  Serve serve = {};
  // A variable of the environment, if it is set.
  std::function<std::optional<std::string>(const char* name)> variable = {};
  unsigned uid = 0;
  std::string version = {};
};

// Answers on `out`, complaints on `err`. The exit code is that of tdock's other commands: 0; 2 if the call must be
// mended (InvalidArgument, NotFound, AlreadyExists, Unimplemented, or what the options are); 130 if it was cancelled; 1
// for any other error, `out` that cannot be written included.
int RunCommandLine(int argc, const char* const* argv, const Wiring& wiring, std::ostream& out, std::ostream& err);

}  // namespace tdock::console
