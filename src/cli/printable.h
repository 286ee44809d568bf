// Content on a terminal: text of models and files that is to be seen, whatever language it is in.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tdock::cli {

// With C escapes for control characters other than line ends and tabs, which might change a terminal, and U+FFFD for
// what is not UTF-8. Marks of the direction and joiners stay: languages need them.
std::string Printable(absl::string_view text);
// JSON that says the same, with JSON's escapes for the control characters that it may have: U+007F to U+009F.
std::string PrintableJson(absl::string_view json);

}  // namespace tdock::cli
