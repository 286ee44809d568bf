#include "tdock/column.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock {
namespace {

absl::Status CheckAligned(const Buffer& buffer, size_t alignment, absl::string_view what) {
  if (reinterpret_cast<uintptr_t>(buffer.data()) % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memory of the ", what, " does not start at a multiple of ", alignment, " bytes"));
}

absl::Status NoSuchRows(int64_t begin, int64_t count, int64_t rows) {
  return absl::OutOfRangeError(absl::StrCat("rows ", begin, " to ", begin, " + ", count, " of ", rows));
}

// A buffer for `rows` + 1 offsets, and its first element.
std::pair<Buffer, int64_t*> AllocateOffsets(int64_t rows) {
  Buffer offsets = Buffer::Allocate((static_cast<size_t>(rows) + 1) * sizeof(int64_t));
  int64_t* first = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *first = 0;
  return {std::move(offsets), first};
}

}  // namespace

std::string ToString(const ColumnType& type) {
  switch (type.kind) {
    case ColumnKind::kDense:
      return absl::StrCat(Name(type.dtype), ToString(type.row_shape));
    case ColumnKind::kRagged: {
      std::string text = absl::StrCat("ragged ", Name(type.dtype), "[*");
      for (int64_t size : type.row_shape) absl::StrAppend(&text, ",", size);
      return text + "]";
    }
    case ColumnKind::kBytes:
      return type.dtype == DType::kI8 ? "text" : "bytes";
  }
  return "unknown";
}

absl::StatusOr<int64_t> ItemBytes(const ColumnType& type) {
  const size_t element = SizeOf(type.dtype);
  if (element == 0 || type.kind > ColumnKind::kBytes) return absl::InvalidArgumentError("unknown column type");
  const bool characters = type.dtype == DType::kU8 || type.dtype == DType::kI8;
  if (type.kind == ColumnKind::kBytes && (!characters || !type.row_shape.empty())) {
    return absl::InvalidArgumentError("a bytes column has dtype uint8, or int8 for text, and no row shape");
  }
  TDOCK_ASSIGN_OR_RETURN(const int64_t elements, NumElements(type.row_shape));
  if (elements > (int64_t{1} << 62) / static_cast<int64_t>(element)) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(type), " has too many bytes"));
  }
  return elements * static_cast<int64_t>(element);
}

absl::StatusOr<Column> Column::MakeDense(DType dtype, const Shape& row_shape, int64_t rows, Buffer values) {
  const ColumnType type = ColumnType::Dense(dtype, row_shape);
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));
  const bool fits = rows >= 0 && (item == 0 || rows <= (int64_t{1} << 62) / item);
  if (!fits || values.size() != static_cast<size_t>(rows * item)) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows, " rows of ", ToString(type), " do not have ", values.size(), " bytes"));
  }
  TDOCK_RETURN_IF_ERROR(CheckAligned(values, SizeOf(dtype), "values"));
  return Column(type, rows, item, std::move(values), Buffer());
}

absl::StatusOr<Column> Column::MakeRagged(DType dtype, const Shape& row_shape, Buffer values, Buffer offsets) {
  return MakeVarying(ColumnType::Ragged(dtype, row_shape), std::move(values), std::move(offsets));
}

absl::StatusOr<Column> Column::MakeBytes(Buffer values, Buffer offsets, DType dtype) {
  return MakeVarying({ColumnKind::kBytes, dtype, {}}, std::move(values), std::move(offsets));
}

absl::StatusOr<Column> Column::MakeVarying(const ColumnType& type, Buffer values, Buffer offsets) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));
  if (item == 0) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(type), " has items without elements"));
  }
  if (offsets.size() < sizeof(int64_t) || offsets.size() % sizeof(int64_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(offsets.size(), " bytes are not a list of int64 offsets"));
  }
  TDOCK_RETURN_IF_ERROR(CheckAligned(offsets, alignof(int64_t), "offsets"));
  TDOCK_RETURN_IF_ERROR(CheckAligned(values, SizeOf(type.dtype), "values"));
  const std::span<const int64_t> list(reinterpret_cast<const int64_t*>(offsets.data()),
                                      offsets.size() / sizeof(int64_t));
  int64_t last = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < last)
      return absl::InvalidArgumentError(absl::StrCat("offset ", i, " is ", list[i], ", after ", last));
    last = list[i];
  }
  if (last > static_cast<int64_t>(values.size()) / item) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last offset is ", last, ", the values hold ", static_cast<int64_t>(values.size()) / item));
  }
  const int64_t rows = static_cast<int64_t>(list.size()) - 1;
  return Column(type, rows, item, std::move(values), std::move(offsets));
}

absl::StatusOr<Column> Column::CopyDense(DType dtype, const Shape& row_shape, std::span<const std::byte> values) {
  return AdoptDense(dtype, row_shape, Buffer::CopyOf(values));
}

absl::StatusOr<Column> Column::AdoptDense(DType dtype, const Shape& row_shape, Buffer values) {
  const ColumnType type = ColumnType::Dense(dtype, row_shape);
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));
  const int64_t size = static_cast<int64_t>(values.size());
  if (item == 0 || size % item != 0) {
    return absl::InvalidArgumentError(absl::StrCat(size / static_cast<int64_t>(SizeOf(dtype)),
                                                   " values do not fill a whole number of rows of ", ToString(type)));
  }
  return Column(type, size / item, item, std::move(values), Buffer());
}

Column Column::FromStrings(std::span<const std::string> rows) {
  size_t total = 0;
  for (const std::string& row : rows) total += row.size();
  Buffer values = Buffer::Allocate(total);
  auto [offsets, offset] = AllocateOffsets(static_cast<int64_t>(rows.size()));
  for (const std::string& row : rows) {
    if (!row.empty()) std::memcpy(values.mutable_data() + *offset, row.data(), row.size());
    offset[1] = offset[0] + static_cast<int64_t>(row.size());
    ++offset;
  }
  return Column(ColumnType::Bytes(), static_cast<int64_t>(rows.size()), 1, std::move(values), std::move(offsets));
}

absl::StatusOr<Column> Column::Empty(const ColumnType& type) {
  if (type.kind == ColumnKind::kDense) return MakeDense(type.dtype, type.row_shape, 0, Buffer());
  return MakeVarying(type, Buffer(), AllocateOffsets(0).first);
}

int64_t Column::Length(int64_t row) const {
  if (type_.kind == ColumnKind::kDense) return type_.row_shape.empty() ? 1 : type_.row_shape[0];
  return RawOffsets()[row + 1] - RawOffsets()[row];
}

absl::StatusOr<absl::string_view> Column::Text(int64_t row) const {
  if (type_.kind != ColumnKind::kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(type_), ", not bytes"));
  }
  TDOCK_RETURN_IF_ERROR(CheckRow(row));
  const auto bytes = RowBytes(row);
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::StatusOr<Column> Column::Slice(int64_t begin, int64_t count) const {
  if (begin < 0 || count < 0 || begin > rows_ || count > rows_ - begin) return NoSuchRows(begin, count, rows_);
  if (type_.kind == ColumnKind::kDense) {
    Buffer values = values_.Slice(static_cast<size_t>(begin * item_bytes_), static_cast<size_t>(count * item_bytes_));
    return Column(type_, count, item_bytes_, std::move(values), Buffer());
  }
  Buffer offsets =
      offsets_.Slice(static_cast<size_t>(begin) * sizeof(int64_t), (static_cast<size_t>(count) + 1) * sizeof(int64_t));
  return Column(type_, count, item_bytes_, Buffer(values_), std::move(offsets));
}

absl::StatusOr<Column> Column::Select(std::span<const int64_t> rows) const {
  int64_t items = 0;
  for (int64_t row : rows) {
    TDOCK_RETURN_IF_ERROR(CheckRow(row));
    items += ItemsBefore(row + 1) - ItemsBefore(row);
  }
  const int64_t count = static_cast<int64_t>(rows.size());
  Buffer values = Buffer::Allocate(static_cast<size_t>(items * item_bytes_));
  Buffer offsets;
  int64_t* offset = nullptr;
  if (type_.kind != ColumnKind::kDense) std::tie(offsets, offset) = AllocateOffsets(count);
  std::byte* end = values.mutable_data();
  for (int64_t row : rows) {
    const auto bytes = RowBytes(row);
    if (!bytes.empty()) std::memcpy(end, bytes.data(), bytes.size());
    end += bytes.size();
    if (offset != nullptr) {
      offset[1] = offset[0] + static_cast<int64_t>(bytes.size()) / item_bytes_;
      ++offset;
    }
  }
  return Column(type_, count, item_bytes_, std::move(values), std::move(offsets));
}

absl::StatusOr<Column> Column::Concat(std::span<const Column> columns) {
  if (columns.empty()) return absl::InvalidArgumentError("no columns to concatenate");
  const ColumnType& type = columns.front().type_;
  int64_t rows = 0, bytes = 0;
  for (const Column& column : columns) {
    if (column.type_ != type) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot concatenate ", ToString(type), " and ", ToString(column.type_)));
    }
    if (__builtin_add_overflow(rows, column.rows_, &rows)) {
      return absl::InvalidArgumentError("the rows to concatenate are more than 2^63");
    }
    bytes += column.payload_bytes();
  }
  Buffer values = Buffer::Allocate(static_cast<size_t>(bytes));
  Buffer offsets;
  int64_t* offset = nullptr;
  if (type.kind != ColumnKind::kDense) std::tie(offsets, offset) = AllocateOffsets(rows);
  std::byte* end = values.mutable_data();
  for (const Column& column : columns) {
    const auto payload = column.PayloadBytes();
    if (!payload.empty()) std::memcpy(end, payload.data(), payload.size());
    end += payload.size();
    for (int64_t row = 0; offset != nullptr && row < column.rows_; ++row, ++offset) {
      offset[1] = offset[0] + column.Length(row);
    }
  }
  return Column(type, rows, columns.front().item_bytes_, std::move(values), std::move(offsets));
}

absl::Status Column::CheckElement(DType dtype) const {
  if (dtype == type_.dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(type_), ", not ", Name(dtype)));
}

absl::Status Column::CheckRow(int64_t row) const {
  if (row >= 0 && row < rows_) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("row ", row, " of ", rows_));
}

}  // namespace tdock
