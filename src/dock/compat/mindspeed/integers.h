// Lengths and flags, as integers of any width.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/column.h"

namespace tdock::mindspeed {

// The one integer (or bool) of each row. InvalidArgument, naming the column, if it holds something else.
absl::StatusOr<std::vector<int64_t>> IntegersOf(absl::string_view name, const Column& column);

}  // namespace tdock::mindspeed
