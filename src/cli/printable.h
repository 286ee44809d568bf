// Text of models and files on a terminal.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tdock::cli {

// With C escapes for control characters but line ends, which might change a terminal, and U+FFFD for what is not UTF-8.
std::string Printable(absl::string_view text);

}  // namespace tdock::cli
