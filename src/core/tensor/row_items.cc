#include "core/tensor/row_items.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/count_limits.h"

namespace tdock {

absl::StatusOr<RowItems> ItemsOf(const Column& rows) {
  const ColumnType& type = rows.type();
  if (type.kind == ColumnKind::kBytes) return absl::InvalidArgumentError("holds bytes, not numbers in rows");
  const std::span<const int64_t> sizes(type.row_shape.begin(), type.row_shape.end());
  const bool item_is_row = type.kind == ColumnKind::kRagged || sizes.empty();
  RowItems items;
  items.shape = Shape(item_is_row ? sizes : sizes.subspan(1));
  TDOCK_ASSIGN_OR_RETURN(items.bytes, ItemBytes(ColumnType::Dense(type.dtype, items.shape)));
  if (items.bytes == 0) return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(type), ", without elements"));
  // No memory stands behind rows without elements, so any number of them can be claimed.
  if (rows.item_bytes() == 0) TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of rows", rows.rows(), kMaxRows));
  return items;
}

absl::StatusOr<std::vector<int64_t>> ReadLengths(const Column& lengths) {
  const ColumnType& type = lengths.type();
  const bool one_each = type.kind == ColumnKind::kDense && (type.row_shape.empty() || type.row_shape == Shape{1});
  std::vector<int64_t> read;
  if (one_each && type.dtype == DType::kI64) {
    const auto values = *lengths.Values<int64_t>();
    read.assign(values.begin(), values.end());
  } else if (one_each && type.dtype == DType::kI32) {
    const auto values = *lengths.Values<int32_t>();
    read.assign(values.begin(), values.end());
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("lengths are int32 or int64, [] or [1], not ", ToString(lengths.type())));
  }
  for (size_t row = 0; row < read.size(); ++row) {
    if (read[row] < 0) return absl::InvalidArgumentError(absl::StrCat("row ", row, " has length ", read[row]));
  }
  return read;
}

absl::StatusOr<Column> MakeRaggedOf(DType dtype, const Shape& item_shape, Buffer values,
                                    std::span<const int64_t> lengths) {
  Buffer offsets = Buffer::Allocate((lengths.size() + 1) * sizeof(int64_t));
  int64_t* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *offset = 0;
  for (size_t row = 0; row < lengths.size(); ++row, ++offset) {
    if (__builtin_add_overflow(offset[0], lengths[row], &offset[1])) {
      return absl::InvalidArgumentError(absl::StrCat("the lengths up to row ", row, " add up to more than 2^63"));
    }
  }
  return Column::MakeRagged(dtype, item_shape, std::move(values), std::move(offsets));
}

}  // namespace tdock
