// python/transfer_dock/environments.py and its imports, an environment program, as a text for ScriptReader.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::environment {

extern const absl::string_view kEnvironmentsModule;

}  // namespace tdock::environment
