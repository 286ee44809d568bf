// Command lines without a shell.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::reward {

// The words of a command line, as a POSIX shell splits it: by white space, where '…' and "…" keep what is in them
// together and \ takes the next character as it is; in "…" only before ", \, $ and `. Nothing is expanded. At least one
// word; InvalidArgument for a quotation without an end, a \ at the end, and for no word.
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view line);

}  // namespace tdock::reward
