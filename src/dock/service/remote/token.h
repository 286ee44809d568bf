// The tokens that servers and clients share.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::service {

// A token in a form that HTTP can carry: printable ASCII without spaces, at most 4,096 bytes. Trailing line ends, as
// files have them, are removed. InvalidArgument for anything else, beginning with `what`, and not quoting the token.
absl::StatusOr<std::string> TokenFrom(absl::string_view text, absl::string_view what);

// The token in a file, without surrounding white space. Errors name the file: those of opening it, or InvalidArgument.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace tdock::service
