// Rows of varying length, concatenated without padding, as collectives and kernels for packed sequences expect them.
// Names in parentheses are those of the functions that do the same in MindSpeed-RL. Pure functions, thread-safe; what
// is packed or unpacked shares memory where it can. Rows are those of padding.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock/batch.h"
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

struct PackedColumn {
  std::string name;
  PackedRows rows;
};

// Packs each column by itself, and unpacks to ragged columns. For dense ones, give the result to PadExperience.
// (pack_experience_columns, unpack_pad_experience)
absl::StatusOr<std::vector<PackedColumn>> PackColumns(const Batch& columns);
absl::StatusOr<Batch> UnpackColumns(std::span<const PackedColumn> columns);

// Concatenates matrices (d, L) of one height side by side: dense columns of d rows [L] make one of d rows [ΣL], with
// the lengths L. InvalidArgument, naming the matrix, if its d or element type differs from the first's or it is not
// dense [L]; or if there are none. (pack_experience_columns, of rows with two dimensions)
absl::StatusOr<PackedRows> PackMatrices(std::span<const Column> matrices);
absl::StatusOr<std::vector<Column>> UnpackMatrices(const PackedRows& packed);

}  // namespace tdock
