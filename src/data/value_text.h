// A cell as text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "data/value.h"

namespace tdock::data {

// Text as it is, numbers in their shortest decimal form (72.0 as "72"), "true" and "false", nothing as "", lists and
// objects as JSON. InvalidArgument for a number that is not finite.
absl::StatusOr<std::string> TextOfValue(const Value& value);

// As JSON; in objects, what is nothing is left out, which in columns of records stands for a name that one of them
// lacks.
absl::StatusOr<std::string> JsonOfValue(const Value& value);

// The same as a value of JSON.
absl::StatusOr<nlohmann::ordered_json> JsonTreeOfValue(const Value& value);

}  // namespace tdock::data
