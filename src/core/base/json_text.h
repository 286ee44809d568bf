// JSON from files that may be damaged or hostile.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tdock {

// Parses a JSON object. InvalidArgument says what is wrong: a syntax error with its place, a value that is no object, a
// name that an object has twice (readers differ in which of the two they take), or more than `max_depth` objects and
// lists inside one another (the library prints and frees values by recursion), or more than ten million values.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, int max_depth);

}  // namespace tdock
