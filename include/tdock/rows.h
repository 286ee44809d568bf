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

namespace tdock {

class BulkCopy;

// Assigned by the dock, ascending within a partition, never reused.
using RowId = uint64_t;
// Chosen by the feeder: the rows of one prompt.
using GroupId = uint64_t;
// A row that was put without a group: it is a group of its own.
inline constexpr GroupId kNoGroup = ~GroupId{0};

// What a row is marked with: names and values. Names are as everywhere; values have at most 1,024 bytes of UTF-8.
using Tags = std::map<std::string, std::string>;

// A cell that no version of the trained weights had a part in.
inline constexpr int64_t kNoWeightsVersion = -1;

struct ColumnSpec {
  std::string name = {};
  ColumnType type = {};

  friend bool operator==(const ColumnSpec&, const ColumnSpec&) = default;
};

// The part of a cell up to item `end` (a step along the first dimension, or a byte), from where the part before ends.
struct Piece {
  int64_t end = 0;
  int64_t weights_version = kNoWeightsVersion;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// One column of one row.
struct Cell {
  // Where there is no such cell, as can be for a column that is optional, they begin at null.
  std::span<const std::byte> bytes = {};
  // Of a response that was made in several pieces, the smallest.
  int64_t weights_version = kNoWeightsVersion;
  // It was put as not complete.
  bool partial = false;
};

// What a dock fills in; users see it through Rows.
struct RowsData {
  std::vector<RowId> ids = {};
  std::vector<GroupId> groups = {};
  // How often each row was handed to this consumer before and came back because a lease expired. Empty: never.
  std::vector<int32_t> redeliveries = {};
  // Of each row. Empty where no row of the partition has any.
  std::vector<std::string> keys = {};
  std::vector<std::shared_ptr<const Tags>> tags = {};
  std::shared_ptr<const std::vector<ColumnSpec>> columns = {};
  std::vector<Cell> cells = {};  // column after column
  // Of each row. Empty where all are 0.
  std::vector<int32_t> ages = {};
  std::vector<uint32_t> epochs = {};
  // Of those cells that were made in several pieces; by the position in `cells`.
  std::map<size_t, std::vector<Piece>> pieces = {};
  std::vector<std::shared_ptr<const void>> pins = {};
  // Where copies of the rows go; null: the heap.
  std::shared_ptr<Memory> memory = {};
};

// Immutable; copies share the views. The bytes stay where they are, whatever happens to the rows or the dock, until the
// last copy is gone; they count as held until then. Thread-safe.
class Rows {
 public:
  Rows() : Rows(RowsData()) {}
  explicit Rows(RowsData data);

  size_t size() const { return data_->ids.size(); }
  bool empty() const { return data_->ids.empty(); }
  // Of each row. The rows of a group are neighbours, in the order of their ids, when they were taken as a group.
  std::span<const RowId> ids() const { return data_->ids; }
  std::span<const GroupId> groups() const { return data_->groups; }
  int32_t redeliveries(size_t row) const { return data_->redeliveries.empty() ? 0 : data_->redeliveries[row]; }

  // Empty for a row without a key.
  absl::string_view key(size_t row) const { return data_->keys.empty() ? "" : absl::string_view(data_->keys[row]); }
  const Tags& tags(size_t row) const {
    static const Tags kNone;
    return data_->tags.empty() || data_->tags[row] == nullptr ? kNone : *data_->tags[row];
  }
  // How often the row was given back unfinished, or sent back.
  int32_t age(size_t row) const { return data_->ages.empty() ? 0 : data_->ages[row]; }
  // How often the row was sent back: results that were made from what it was before are refused.
  uint32_t epoch(size_t row) const { return data_->epochs.empty() ? 0 : data_->epochs[row]; }

  std::span<const ColumnSpec> columns() const { return *data_->columns; }
  // The position of a column. NotFound, naming those that there are.
  absl::StatusOr<size_t> FindColumn(absl::string_view name) const;

  // `row` < size(), `column` < columns().size().
  const Cell& cell(size_t row, size_t column) const { return data_->cells[column * size() + row]; }
  // Whether an optional column is there.
  bool Has(size_t row, size_t column) const { return cell(row, column).bytes.data() != nullptr; }

  // The elements of one cell. NotFound for the column or a cell that is not there, InvalidArgument for the element
  // type, OutOfRange for the row.
  template <Element T>
  absl::StatusOr<std::span<const T>> Get(size_t row, absl::string_view column) const {
    absl::StatusOr<std::span<const std::byte>> bytes = Look(row, column, kDTypeOf<T>);
    if (!bytes.ok()) return bytes.status();
    return std::span<const T>(reinterpret_cast<const T*>(bytes->data()), bytes->size() / sizeof(T));
  }
  // A cell of a bytes column. Errors as for Get.
  absl::StatusOr<absl::string_view> Text(size_t row, absl::string_view column) const;
  // The weights version that made a cell; of one that was made in several pieces, the smallest. Errors as for Get.
  absl::StatusOr<int64_t> WeightsVersion(size_t row, absl::string_view column) const;
  // Which versions made which part of a cell: several where it was put as partial first, and by other weights later.
  // Errors as for Get.
  absl::StatusOr<std::vector<Piece>> Pieces(size_t row, absl::string_view column) const;

  // Of those cells that were made in several pieces; by `column` × size() + `row`.
  const std::map<size_t, std::vector<Piece>>& pieces() const { return data_->pieces; }

  // A contiguous copy of one column, or of all: in `memory`, or else where the dock keeps memory warm. NotFound if a
  // cell is not there; a batch goes without the optional columns that not every row has.
  absl::StatusOr<Column> ToColumn(absl::string_view name, Memory* memory = nullptr) const;
  absl::StatusOr<Batch> ToBatch(Memory* memory = nullptr) const;

 private:
  absl::StatusOr<std::span<const std::byte>> Look(size_t row, absl::string_view column, DType dtype) const;
  absl::StatusOr<size_t> FindCell(size_t row, absl::string_view column) const;
  // The first row without the column, or size().
  size_t FirstWithout(size_t column) const;
  absl::StatusOr<Column> Gather(size_t column, const BulkCopy& copy, Memory* memory) const;

  std::shared_ptr<const RowsData> data_;
};

}  // namespace tdock
