// JSON from files that may be damaged or hostile.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tdock {

// Parses a JSON object. InvalidArgument says what is wrong: a syntax error with its position, a value that is not an
// object, a duplicate name in an object (parsers differ in which value they take), more than `max_depth` nested objects
// and lists (the library prints and frees values by recursion), or more than ten million values.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, int max_depth);

}  // namespace tdock
