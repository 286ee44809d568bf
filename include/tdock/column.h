// One field of many samples.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/buffer.h"
#include "tdock/dtype.h"

namespace tdock {

enum class ColumnKind : uint8_t {
  kDense = 0,   // every row has the same shape
  kRagged = 1,  // the first dimension of a row varies
  kBytes = 2,   // a row is a string of bytes
};

struct ColumnType {
  ColumnKind kind = ColumnKind::kBytes;
  // Of bytes: kU8, or kI8 for text in UTF-8. The dock accepts either for the other; what is put into a column of text,
  // or as text, must be UTF-8.
  DType dtype = DType::kU8;
  // Dense: the shape of a row, none for a scalar. Ragged: the dimensions after the first. Bytes: none.
  Shape row_shape;

  static ColumnType Dense(DType dtype, const Shape& row_shape = {}) { return {ColumnKind::kDense, dtype, row_shape}; }
  static ColumnType Ragged(DType dtype, const Shape& row_shape = {}) { return {ColumnKind::kRagged, dtype, row_shape}; }
  static ColumnType Bytes() { return {}; }
  static ColumnType Text() { return {ColumnKind::kBytes, DType::kI8, {}}; }

  friend bool operator==(const ColumnType&, const ColumnType&) = default;
};

// "float32[4]", "ragged int64[*]", "ragged float32[*,8]", "bytes", "text".
std::string ToString(const ColumnType& type);

// The size of one item in bytes: a whole row of a dense column, one step along the first dimension of a ragged one, one
// byte of a bytes column. InvalidArgument for a shape that is negative or overflows, and for a bytes column with
// another dtype or a shape.
absl::StatusOr<int64_t> ItemBytes(const ColumnType& type);

// Immutable; copies share the memory. Thread-safe.
//
//   dense    values  | row 0 | row 1 | row 2 |            rows × item
//   ragged   values  | row 0 | row 1 …  | row 2 |         consecutive items
//            offsets | 0 | 2 | 9 | 11 |                   int64, rows + 1 of them, in items; the first may exceed 0
//   bytes    as ragged, with items of one byte
class Column {
 public:
  // These check that the buffers have the sizes and alignments that the type requires, and that offsets ascend within
  // the values: InvalidArgument otherwise.
  static absl::StatusOr<Column> MakeDense(DType dtype, const Shape& row_shape, int64_t rows, Buffer values);
  static absl::StatusOr<Column> MakeRagged(DType dtype, const Shape& row_shape, Buffer values, Buffer offsets);
  static absl::StatusOr<Column> MakeBytes(Buffer values, Buffer offsets, DType dtype = DType::kU8);

  // A dense column with a copy of the values, with as many rows as they fill. InvalidArgument if they do not fill a
  // whole number of rows, or if a row has no elements.
  template <Element T>
  static absl::StatusOr<Column> FromValues(std::span<const T> values, const Shape& row_shape = {}) {
    return CopyDense(kDTypeOf<T>, row_shape, std::as_bytes(values));
  }
  template <Element T>
  static absl::StatusOr<Column> FromValues(const std::vector<T>& values, const Shape& row_shape = {}) {
    Buffer buffer = Buffer::Allocate(values.size() * sizeof(T));
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(buffer.mutable_data()));
    return AdoptDense(kDTypeOf<T>, row_shape, std::move(buffer));
  }

  // A ragged column with a copy of the rows.
  template <Element T>
  static Column FromRows(const std::vector<std::vector<T>>& rows) {
    size_t total = 0;
    for (const auto& row : rows) total += row.size();
    Buffer values = Buffer::Allocate(total * sizeof(T));
    Buffer offsets = Buffer::Allocate((rows.size() + 1) * sizeof(int64_t));
    T* const begin = reinterpret_cast<T*>(values.mutable_data());
    T* end = begin;
    int64_t* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
    *offset++ = 0;
    for (const auto& row : rows) {
      end = std::copy(row.begin(), row.end(), end);
      *offset++ = end - begin;
    }
    return Column(ColumnType::Ragged(kDTypeOf<T>), static_cast<int64_t>(rows.size()), sizeof(T), std::move(values),
                  std::move(offsets));
  }

  // A bytes column with a copy of the strings.
  static Column FromStrings(std::span<const std::string> rows);

  // A column without rows.
  static absl::StatusOr<Column> Empty(const ColumnType& type);

  const ColumnType& type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t item_bytes() const { return item_bytes_; }
  // The total size of the rows' values.
  int64_t payload_bytes() const { return ItemsBefore(rows_) * item_bytes_; }
  const Buffer& values() const { return values_; }
  // Empty for a dense column.
  std::span<const int64_t> offsets() const {
    if (type_.kind == ColumnKind::kDense) return {};
    return {reinterpret_cast<const int64_t*>(offsets_.data()), static_cast<size_t>(rows_) + 1};
  }

  // The size of a row's first dimension: the number of bytes in a bytes column, 1 for a dense scalar. 0 ≤ row < rows().
  int64_t Length(int64_t row) const;
  std::span<const std::byte> RowBytes(int64_t row) const {
    const int64_t begin = ItemsBefore(row), end = ItemsBefore(row + 1);
    return {values_.data() + (FirstItem() + begin) * item_bytes_, static_cast<size_t>((end - begin) * item_bytes_)};
  }
  // The bytes of all rows, one after another.
  std::span<const std::byte> PayloadBytes() const {
    return {values_.data() + FirstItem() * item_bytes_, static_cast<size_t>(payload_bytes())};
  }

  // The concatenated elements of all rows, or those of one row. InvalidArgument if T is not the element type,
  // OutOfRange if there is no such row.
  template <Element T>
  absl::StatusOr<std::span<const T>> Values() const {
    if (absl::Status status = CheckElement(kDTypeOf<T>); !status.ok()) return status;
    return Typed<T>(PayloadBytes());
  }
  template <Element T>
  absl::StatusOr<std::span<const T>> Row(int64_t row) const {
    if (absl::Status status = CheckElement(kDTypeOf<T>); !status.ok()) return status;
    if (absl::Status status = CheckRow(row); !status.ok()) return status;
    return Typed<T>(RowBytes(row));
  }
  // A row of a bytes column.
  absl::StatusOr<absl::string_view> Text(int64_t row) const;

  // Rows [begin, begin + count), sharing the memory. OutOfRange if they do not all exist.
  absl::StatusOr<Column> Slice(int64_t begin, int64_t count) const;
  // A copy of the given rows in the given order, repeats allowed. OutOfRange if one does not exist.
  absl::StatusOr<Column> Select(std::span<const int64_t> rows) const;
  // All rows of one column after another. InvalidArgument if there are none, or their types differ.
  static absl::StatusOr<Column> Concat(std::span<const Column> columns);

 private:
  Column(const ColumnType& type, int64_t rows, int64_t item_bytes, Buffer&& values, Buffer&& offsets)
      : type_(type), rows_(rows), item_bytes_(item_bytes), values_(std::move(values)), offsets_(std::move(offsets)) {}

  static absl::StatusOr<Column> CopyDense(DType dtype, const Shape& row_shape, std::span<const std::byte> values);
  static absl::StatusOr<Column> AdoptDense(DType dtype, const Shape& row_shape, Buffer values);
  static absl::StatusOr<Column> MakeVarying(const ColumnType& type, Buffer values, Buffer offsets);

  absl::Status CheckElement(DType dtype) const;
  absl::Status CheckRow(int64_t row) const;

  template <class T>
  static std::span<const T> Typed(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  const int64_t* RawOffsets() const { return reinterpret_cast<const int64_t*>(offsets_.data()); }
  int64_t FirstItem() const { return type_.kind == ColumnKind::kDense ? 0 : RawOffsets()[0]; }
  int64_t ItemsBefore(int64_t row) const {
    return type_.kind == ColumnKind::kDense ? row : RawOffsets()[row] - RawOffsets()[0];
  }

  ColumnType type_;
  int64_t rows_;
  int64_t item_bytes_;
  Buffer values_;
  Buffer offsets_;
};

}  // namespace tdock
