// Rows of varying length, concatenated without padding, as collectives and kernels for packed sequences expect them.
// Pure functions, thread-safe; what is packed or unpacked shares memory where it can. Rows are those of padding.h.
#pragma once

#include "absl/status/statusor.h"
#include "tdock/column.h"
#include "tdock/padding.h"

namespace tdock {

//   rows {1, 2, 3}, {}, {4}    →    values 1 2 3 4    lengths 3 0 1
struct PackedRows {
  Column values;   // dense: a row for each item, of the dimensions after the first
  Column lengths;  // dense int32[]
};

// Shares the memory of the values. InvalidArgument for a row of more than 2^31 − 1 items.
absl::StatusOr<PackedRows> PackRows(const Column& rows);

// The inverse: a ragged column, which shares the memory of the values. InvalidArgument if the lengths are negative or
// do not add up to the items.
absl::StatusOr<Column> UnpackRows(const PackedRows& packed);

// UnpackRows, then PadRows.
absl::StatusOr<Column> UnpackAndPad(const PackedRows& packed, const PadOptions& options = {});

}  // namespace tdock
