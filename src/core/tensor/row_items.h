// Rows of a ragged or dense column as numbers of items of one size.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/column.h"

namespace tdock {

// An item is one step along the first dimension of a row; a dense scalar is one item.
struct RowItems {
  Shape shape;  // of an item
  int64_t bytes = 0;
};

// InvalidArgument for bytes, for items without elements, and for more than kMaxRows rows without items.
absl::StatusOr<RowItems> ItemsOf(const Column& rows);

// Lengths as a column holds them: dense int32 or int64, [] or [1], not negative. InvalidArgument otherwise, naming the
// row.
absl::StatusOr<std::vector<int64_t>> ReadLengths(const Column& lengths);

// A ragged column of rows with these lengths, which are contiguous in `values`; that is not copied.
absl::StatusOr<Column> MakeRaggedOf(DType dtype, const Shape& item_shape, Buffer values,
                                    std::span<const int64_t> lengths);

}  // namespace tdock
