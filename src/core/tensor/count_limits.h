// How much may be made of a number that a caller gives. What exceeds this is a mistake, and refused before any memory
// is asked for. The public headers say these numbers where they hold.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tdock/column.h"

namespace tdock {

// Of what is repeated, or listed by number.
inline constexpr int64_t kMaxRows = int64_t{1} << 28;
// Chunks of a batch, and ranks of a plan.
inline constexpr int64_t kMaxParts = int64_t{1} << 20;
// Of a column that is padded or repeated.
inline constexpr int64_t kMaxColumnBytes = int64_t{1} << 36;

// InvalidArgument, with both numbers, if `value` exceeds `most`.
absl::Status CheckAtMost(absl::string_view what, int64_t value, int64_t most);

// InvalidArgument if the rows of the column, in turn until there are `total` ≥ 0, hold more than kMaxColumnBytes.
absl::Status CheckRepeatedBytes(const Column& column, int64_t total);

}  // namespace tdock
