#include "tdock/packing.h"

#include <cstring>
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

absl::Status CheckMatrix(const Column& matrix, const Column& first) {
  const ColumnType& type = matrix.type();
  if (type.kind != ColumnKind::kDense || type.row_shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(type), ", not dense rows [L]"));
  }
  if (type.dtype != first.type().dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("holds ", Name(type.dtype), ", the first one ", Name(first.type().dtype)));
  }
  if (matrix.rows() != first.rows()) {
    return absl::InvalidArgumentError(absl::StrCat("has ", matrix.rows(), " rows, the first one ", first.rows()));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::vector<PackedColumn>> PackColumns(const Batch& columns) {
  std::vector<PackedColumn> packed;
  for (const auto& [name, column] : columns.columns()) {
    absl::StatusOr<PackedRows> rows = PackRows(column);
    if (!rows.ok()) return Annotate(rows.status(), absl::StrCat("column '", name, "'"));
    packed.push_back({name, *std::move(rows)});
  }
  return packed;
}

absl::StatusOr<Batch> UnpackColumns(std::span<const PackedColumn> columns) {
  Batch batch;
  for (const PackedColumn& column : columns) TDOCK_RETURN_IF_ERROR(batch.Add(column.name, UnpackRows(column.rows)));
  return batch;
}

absl::StatusOr<PackedRows> PackMatrices(std::span<const Column> matrices) {
  if (matrices.empty()) return absl::InvalidArgumentError("no matrices to pack");
  const Column& first = matrices.front();
  int64_t width = 0;
  std::vector<int32_t> lengths;
  for (size_t i = 0; i < matrices.size(); ++i) {
    absl::StatusOr<int32_t> length = 0;
    absl::Status status = CheckMatrix(matrices[i], first);
    if (status.ok()) status = (length = LengthAsInt32(matrices[i].type().row_shape[0])).status();
    if (!status.ok()) return Annotate(status, absl::StrCat("matrix ", i));
    lengths.push_back(*length);
    width += *length;
  }
  int64_t bytes = 0;
  for (const Column& matrix : matrices) bytes += matrix.payload_bytes();
  Buffer values = Buffer::Allocate(static_cast<size_t>(bytes));
  std::byte* to = values.mutable_data();
  for (int64_t row = 0; bytes > 0 && row < first.rows(); ++row) {
    for (const Column& matrix : matrices) {
      const auto from = matrix.RowBytes(row);
      if (!from.empty()) std::memcpy(to, from.data(), from.size());
      to += from.size();
    }
  }
  TDOCK_ASSIGN_OR_RETURN(Column column,
                         Column::MakeDense(first.type().dtype, {width}, first.rows(), std::move(values)));
  TDOCK_ASSIGN_OR_RETURN(Column lengths_column, Column::FromValues(lengths));
  return PackedRows{std::move(column), std::move(lengths_column)};
}

absl::StatusOr<std::vector<Column>> UnpackMatrices(const PackedRows& packed) {
  TDOCK_RETURN_IF_ERROR(CheckMatrix(packed.values, packed.values));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, ReadLengths(packed.lengths));
  const DType dtype = packed.values.type().dtype;
  const int64_t width = packed.values.type().row_shape[0], height = packed.values.rows();
  const int64_t element = static_cast<int64_t>(SizeOf(dtype));
  std::vector<Column> matrices;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    if (length > width - begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("the lengths up to matrix ", matrices.size(), " add up to more than the width of ", width));
    }
    const size_t bytes = static_cast<size_t>(length * element);
    Buffer values = Buffer::Allocate(bytes * static_cast<size_t>(height));
    for (int64_t row = 0; row < height && bytes > 0; ++row) {
      const auto from = packed.values.RowBytes(row).subspan(static_cast<size_t>(begin * element), bytes);
      std::memcpy(values.mutable_data() + static_cast<size_t>(row) * bytes, from.data(), bytes);
    }
    TDOCK_ASSIGN_OR_RETURN(Column matrix, Column::MakeDense(dtype, {length}, height, std::move(values)));
    matrices.push_back(std::move(matrix));
    begin += length;
  }
  if (begin == width) return matrices;
  return absl::InvalidArgumentError(absl::StrCat("the lengths add up to ", begin, ", the width is ", width));
}

}  // namespace tdock
