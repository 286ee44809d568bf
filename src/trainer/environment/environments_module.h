// python/transfer_dock/environments.py and what it imports, an environment program, as a text for `python -c`.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::environment {

extern const absl::string_view kEnvironmentsModule;

}  // namespace tdock::environment
