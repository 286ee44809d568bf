// Commands that serve a model, and talk to a served one.
#pragma once

#include "cli/commands.h"

namespace tdock::cli {

Command AddChat(CLI::App& app);
Command AddServe(CLI::App& app);

}  // namespace tdock::cli
