// The text of code_driver.py, which runs inside the sandbox.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::reward {

extern const absl::string_view kCodeDriver;

}  // namespace tdock::reward
