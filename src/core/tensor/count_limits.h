// Limits on sizes that a caller requests. What exceeds them is a mistake, and is refused before any memory is
// allocated. The public headers document these numbers.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tdock/column.h"

namespace tdock {

// Rows that are repeated, or listed by number.
inline constexpr int64_t kMaxRows = int64_t{1} << 28;
// Chunks of a batch, and ranks of a plan.
inline constexpr int64_t kMaxParts = int64_t{1} << 20;
// Bytes of a column that is padded or repeated.
inline constexpr int64_t kMaxColumnBytes = int64_t{1} << 36;

// InvalidArgument, with both numbers, if `value` exceeds `most`.
absl::Status CheckAtMost(absl::string_view what, int64_t value, int64_t most);

// InvalidArgument if the rows of the column, repeated in order until there are `total` ≥ 0, exceed kMaxColumnBytes.
absl::Status CheckRepeatedBytes(const Column& column, int64_t total);

}  // namespace tdock
