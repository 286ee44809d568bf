// Rows handed out by a dock: views of the bytes that it holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/batch.h"
#include "tdock/column.h"
#include "tdock/fields.h"

namespace tdock {

// Assigned by the dock, ascending within a partition, never reused.
using RowId = uint64_t;
// Chosen by the program that puts the rows: a group is the rows of one prompt.
using GroupId = uint64_t;
// Of a row that was put without a group: it is a group by itself.
inline constexpr GroupId kNoGroup = ~GroupId{0};

// Labels of a row: names and values. The rules for names apply; a value has at most 1,024 bytes of UTF-8.
using Tags = std::map<std::string, std::string>;

// Of a cell that was made without the trained weights.
inline constexpr int64_t kNoWeightsVersion = -1;

struct ColumnSpec {
  std::string name = {};
  ColumnType type = {};

  friend bool operator==(const ColumnSpec&, const ColumnSpec&) = default;

  TDOCK_FIELDS(ColumnSpec, name, type)
};

// The part of a cell from the end of the previous piece up to item `end` (a step along the first dimension, or a byte).
struct Piece {
  int64_t end = 0;
  int64_t weights_version = kNoWeightsVersion;

  friend bool operator==(const Piece&, const Piece&) = default;

  TDOCK_FIELDS(Piece, end, weights_version)
};

// One column of one row.
struct Cell {
  // If there is no such cell, which is possible for an optional column, data() is null.
  std::span<const std::byte> bytes = {};
  // Of a cell that was made in several pieces, the smallest.
  int64_t weights_version = kNoWeightsVersion;
  // It was put with FillRequest::partial.
  bool partial = false;
};

// Immutable; copies share the views. The bytes stay in place until the last copy is destroyed, whatever happens to the
// rows or the dock, and count as held until then. Thread-safe.
class Rows {
 public:
  // None.
  Rows();

  size_t size() const;
  bool empty() const { return size() == 0; }
  // Of each row. Rows that were taken as a group are adjacent and in the order of their ids.
  std::span<const RowId> ids() const;
  std::span<const GroupId> groups() const;
  // How often the row was handed to this consumer before and came back because a lease expired.
  int32_t redeliveries(size_t row) const;

  // Empty for a row without a key.
  absl::string_view key(size_t row) const;
  const Tags& tags(size_t row) const;
  // How many times the row was given back unfinished, or sent back.
  int32_t age(size_t row) const;
  // How many times the row was sent back: results computed from its earlier cells are refused.
  uint32_t epoch(size_t row) const;

  std::span<const ColumnSpec> columns() const;
  // The position of a column. NotFound, naming the existing columns.
  absl::StatusOr<size_t> FindColumn(absl::string_view name) const;

  // `row` < size(), `column` < columns().size().
  const Cell& cell(size_t row, size_t column) const;
  // Whether the row has an optional column.
  bool Has(size_t row, size_t column) const { return cell(row, column).bytes.data() != nullptr; }

  // The elements of one cell. NotFound for a column or cell that does not exist, InvalidArgument for a wrong element
  // type, OutOfRange for the row.
  template <Element T>
  absl::StatusOr<std::span<const T>> Get(size_t row, absl::string_view column) const {
    absl::StatusOr<std::span<const std::byte>> bytes = Look(row, column, kDTypeOf<T>);
    if (!bytes.ok()) return bytes.status();
    return std::span<const T>(reinterpret_cast<const T*>(bytes->data()), bytes->size() / sizeof(T));
  }
  // A cell of a bytes column. Errors as for Get.
  absl::StatusOr<absl::string_view> Text(size_t row, absl::string_view column) const;
  // The version of the weights that made a cell; of one that was made in several pieces, the smallest. Errors as for
  // Get.
  absl::StatusOr<int64_t> WeightsVersion(size_t row, absl::string_view column) const;
  // Which version made which part of a cell: several if it was first put as partial and continued by other weights.
  // Errors as for Get.
  absl::StatusOr<std::vector<Piece>> Pieces(size_t row, absl::string_view column) const;

  // A contiguous copy of one column, or of all: in `memory`, or if that is null, in memory that the dock reuses.
  // NotFound if a cell does not exist; a batch omits the optional columns that not every row has.
  absl::StatusOr<Column> ToColumn(absl::string_view name, Memory* memory = nullptr) const;
  absl::StatusOr<Batch> ToBatch(Memory* memory = nullptr) const;

  // What a dock fills in: known to docks only.
  struct Data;

 private:
  explicit Rows(Data data);

  absl::StatusOr<std::span<const std::byte>> Look(size_t row, absl::string_view column, DType dtype) const;
  absl::StatusOr<size_t> FindCell(size_t row, absl::string_view column) const;

  std::shared_ptr<const Data> data_;
};

}  // namespace tdock
