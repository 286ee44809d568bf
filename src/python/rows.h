// Rows and their columns, as Python sees them: views of the dock's memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "python/incoming.h"
#include "python/process.h"
#include "tdock/rows.h"

namespace tdock::python {

using SharedRows = OfThisProcess<const Rows>;

// One column of rows that were handed out. Immutable. All methods need the GIL, and let go of it where they copy; they
// raise the errors of the dock: InvalidArgument where the column is of another kind, NotFound for a cell that is not
// there.
class RowsColumn {
 public:
  RowsColumn(SharedRows rows, size_t index) : rows_(std::move(rows)), index_(index) {}

  size_t size() const { return rows_->size(); }
  const ColumnSpec& spec() const { return rows_->columns()[index_]; }
  const ColumnType& type() const { return spec().type; }
  const SharedRows& rows() const { return rows_; }
  bool Has(size_t row) const { return rows_->Has(row, index_); }

  // One row: a view of an array, a str, or bytes; None where it is not there. `row` < size().
  nanobind::object Item(size_t row) const;
  // The same of all rows, as a list; with `copy`, arrays are memory of one's own.
  nanobind::object Items(bool copy) const;

  // All elements in one array: of a dense column with the rows as its first dimension, of a ragged one with its items.
  // A read-only view where the rows lie side by side; a copy, which is writable if it was asked for.
  nanobind::object Values(bool copy) const;
  // Values of a dense column.
  nanobind::object ToNumpy(bool copy) const;
  // The same with an integer type of the same size, for elements that NumPy does not have.
  nanobind::object Bits() const;
  nanobind::object ValuesTensor(bool copy) const;
  nanobind::object ToTorch(bool copy) const;
  // One tensor for each row, and all of them as one nested tensor: parts of ValuesTensor.
  nanobind::object Tensors(bool copy) const;
  nanobind::object NestedTensor(bool copy) const;
  // A capsule as __dlpack__ returns it: a read-only view; to who does not know that views may be read-only, a copy.
  nanobind::object Dlpack(const nanobind::kwargs& options) const;
  // int64 array: of each row the size of its first dimension.
  nanobind::object Lengths() const;

  absl::StatusOr<Incoming> AsIncoming() const;

 private:
  // All elements in one piece.
  struct Piece {
    const std::byte* data = nullptr;
    int64_t items = 0;
    bool writable = false;
    nanobind::object owner;
  };

  Piece OnePiece(bool copy) const;
  Piece View(size_t row) const;
  // The rows from end to end, or null where there are gaps.
  const std::byte* Adjacent() const;
  int64_t Length(size_t row) const;
  void RequireNumbers() const;
  void RequireDense(absl::string_view instead) const;
  void RequireNumpy() const;
  std::vector<size_t> ShapeOf(const Piece& piece) const;
  nanobind::object ToNumpy(const Piece& piece, DType dtype) const;
  // An object with the DLPack protocol: of a copy, or as `Access` says.
  template <class... Access>
  nanobind::object ToDlpack(const Piece& piece, DType dtype) const;
  nanobind::object Text(size_t row) const;

  SharedRows rows_;
  size_t index_;
};

// One-dimensional arrays.
nanobind::object ArrayOf(std::vector<uint64_t> numbers);
nanobind::object ArrayOf(std::vector<int64_t> numbers);

// As transfer_dock._native.Rows.
nanobind::object ToPython(Rows rows);

void BindRows(nanobind::module_& module);

}  // namespace tdock::python
