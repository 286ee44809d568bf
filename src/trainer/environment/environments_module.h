// python/transfer_dock/environments.py, which makes an environment program of a Python class.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::environment {

extern const absl::string_view kEnvironmentsModule;

}  // namespace tdock::environment
