#include "tdock/packing.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/row_items.h"

namespace tdock {
namespace {

// The column's payload, without a copy.
Buffer SharePayload(const Column& column) {
  const auto payload = column.PayloadBytes();
  return Buffer::Wrap(payload.data(), payload.size(), std::make_shared<const Column>(column));
}

absl::StatusOr<int32_t> LengthAsInt32(int64_t length) {
  if (length <= INT32_MAX) return static_cast<int32_t>(length);
  return absl::InvalidArgumentError(absl::StrCat("is ", length, " long; int32 lengths end at ", INT32_MAX));
}

}  // namespace

absl::StatusOr<PackedRows> PackRows(const Column& rows) {
  TDOCK_ASSIGN_OR_RETURN(const RowItems items, ItemsOf(rows));
  std::vector<int32_t> lengths;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    absl::StatusOr<int32_t> length = LengthAsInt32(rows.Length(row));
    if (!length.ok()) return Annotate(length.status(), absl::StrCat("row ", row));
    lengths.push_back(*length);
  }
  TDOCK_ASSIGN_OR_RETURN(Column values, Column::MakeDense(rows.type().dtype, items.shape,
                                                          rows.payload_bytes() / items.bytes, SharePayload(rows)));
  TDOCK_ASSIGN_OR_RETURN(Column lengths_column, Column::FromValues(lengths));
  return PackedRows{std::move(values), std::move(lengths_column)};
}

absl::StatusOr<Column> UnpackRows(const PackedRows& packed) {
  if (packed.values.type().kind != ColumnKind::kDense) {
    return absl::InvalidArgumentError(absl::StrCat("packed values are dense, not ", ToString(packed.values.type())));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, ReadLengths(packed.lengths));
  TDOCK_ASSIGN_OR_RETURN(Column rows, MakeRaggedOf(packed.values.type().dtype, packed.values.type().row_shape,
                                                   SharePayload(packed.values), lengths));
  if (rows.offsets().back() != packed.values.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the lengths add up to ", rows.offsets().back(), ", there are ", packed.values.rows(), " items"));
  }
  return rows;
}

absl::StatusOr<Column> UnpackAndPad(const PackedRows& packed, const PadOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const Column rows, UnpackRows(packed));
  return PadRows(rows, options);
}

}  // namespace tdock
