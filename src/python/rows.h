// The Python classes of rows and their columns: views of the dock's memory.
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

// One column of rows that were taken or fetched. Immutable. All methods need the GIL, and release it while they copy;
// they raise the dock's errors: InvalidArgument for a column of another kind, NotFound for a cell that does not exist.
class RowsColumn {
 public:
  RowsColumn(SharedRows rows, size_t index) : rows_(std::move(rows)), index_(index) {}

  size_t size() const { return rows_->size(); }
  const ColumnSpec& spec() const { return rows_->columns()[index_]; }
  const ColumnType& type() const { return spec().type; }
  const SharedRows& rows() const { return rows_; }
  bool Has(size_t row) const { return rows_->Has(row, index_); }

  // One row: an array view, a str, or bytes; None if it does not exist. `row` < size().
  nanobind::object Item(size_t row) const;
  // All rows as a list; with `copy`, arrays are copies.
  nanobind::object Items(bool copy) const;

  // All elements in one array: for a dense column with the rows as its first dimension, for a ragged one with the
  // items. A read-only view if the rows are contiguous; otherwise, or if requested, a copy.
  nanobind::object Values(bool copy) const;
  // Values of a dense column.
  nanobind::object ToNumpy(bool copy) const;
  // The same as integers of the same size, for element types that NumPy lacks.
  nanobind::object Bits() const;
  nanobind::object ValuesTensor(bool copy) const;
  // As ValuesTensor(true) for whoever holds the tensor, but large contiguous rows are copied only where it is written
  // to, page by page. The rows are held as long.
  nanobind::object PrivateTensor() const;
  nanobind::object ToTorch(bool copy) const;
  // One tensor for each row, and all of them as one nested tensor: slices of ValuesTensor.
  nanobind::object Tensors(bool copy) const;
  nanobind::object NestedTensor(bool copy) const;
  // A capsule for __dlpack__: a read-only view; for a consumer that does not support read-only views, a copy.
  nanobind::object Dlpack(const nanobind::kwargs& options) const;
  // int64 array: the size of the first dimension of each row.
  nanobind::object Lengths() const;

  absl::StatusOr<Incoming> AsIncoming() const;

 private:
  // All elements, contiguous.
  struct Piece {
    const std::byte* data = nullptr;
    int64_t items = 0;
    bool writable = false;
    nanobind::object owner;
  };

  Piece OnePiece(bool copy) const;
  Piece PrivatePiece() const;
  Piece View(size_t row) const;
  // The rows from end to end, or null if there are gaps.
  const std::byte* Adjacent() const;
  int64_t Length(size_t row) const;
  // The size of the first dimension of all rows together.
  int64_t Count() const;
  void RequireNumbers() const;
  void RequireDense(absl::string_view instead) const;
  void RequireNumpy() const;
  std::vector<size_t> ShapeOf(const Piece& piece) const;
  nanobind::object ToNumpy(const Piece& piece, DType dtype) const;
  // An object with the DLPack protocol: of a copy, or as `Access` says.
  template <class... Access>
  nanobind::object ToDlpack(const Piece& piece, DType dtype) const;
  nanobind::object ToTensor(const Piece& piece) const;
  nanobind::object Text(size_t row) const;

  SharedRows rows_;
  size_t index_;
};

// One-dimensional arrays.
nanobind::object ArrayOf(std::vector<uint64_t> numbers);
nanobind::object ArrayOf(std::vector<int64_t> numbers);

// As transfer_dock._native.Rows.
nanobind::object ToPython(Rows rows);

// Some rows, by their positions, and some columns: views of the same memory. IndexError, NotFound.
nanobind::object SelectRows(const SharedRows& from, nanobind::handle rows, nanobind::handle columns);
// Everything that rows are, as tuples, lists, numbers, str and bytes; and rows with memory of their own that are the
// same. For pickle, which trusts what it reads.
nanobind::object StateOfRows(const SharedRows& rows);
nanobind::object RowsOfState(nanobind::handle described, nanobind::handle columns);

void BindRows(nanobind::module_& module);

}  // namespace tdock::python
