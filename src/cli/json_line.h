// Lines of JSON that a command reads.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "data/value.h"

namespace tdock::cli {

// InvalidArgument for what is not JSON, nests so deep that going through it by recursion would exhaust the stack, or
// has a whole number beyond 64 bits, which a copy would show as another one.
absl::StatusOr<nlohmann::ordered_json> ParseJsonLine(absl::string_view line);

// The same as a cell of a data set.
data::Value CellOf(const nlohmann::ordered_json& json);

}  // namespace tdock::cli
