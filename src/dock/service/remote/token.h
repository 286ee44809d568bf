// Tokens that a server and its clients share.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// A token as HTTP carries it: printable ASCII without spaces, at most 4,096 bytes. Line ends behind it, as files have
// them, are taken off. InvalidArgument for anything else, beginning with `what`, and without the token.
absl::StatusOr<std::string> TokenFrom(absl::string_view text, absl::string_view what);

// The token in a file, without white space around it. Errors name the file: those of opening it, or InvalidArgument.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace tdock
