// A token that server and clients share.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tdock {

// The text of the file without white space around it. Errors name the file: those of opening it, InvalidArgument for
// one that is empty or longer than 4,096 bytes, or has bytes that are no printable ASCII.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace tdock
