// Columns from Python data, and whole batches.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "python/incoming.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::python {

using ColumnTypes = std::map<std::string, ColumnType, std::less<>>;

// One row for each
//
//   step along the first dimension of an array or tensor  dense; ragged, of equal lengths, where the schema says so
//   array, tensor, or list of numbers in a list           ragged; dense where the schema says so
//   number in a list                                      dense: bool, int64 or float32, or what the schema says
//   str or bytes in a list                                str, bytes
//   row of a nested tensor                                ragged
//
// `declared` is the column's type in the schema, if it is known. Element types are not converted: the dock refuses
// those that do not fit; only Python's own numbers, which have none, become what the schema says. Errors, without the
// column's name: InvalidArgument. Needs the GIL; may throw nb::python_error.
absl::StatusOr<Incoming> LookAtColumn(nanobind::handle data, const std::optional<ColumnType>& declared);

// Columns about to become a batch.
struct IncomingBatch {
  struct Named {
    std::string name;
    Incoming column;
  };
  std::vector<Named> columns = {};
  // Whether they would have other types without the schema.
  bool by_schema = false;
};

// `data`: a dict of columns, as LookAtColumn accepts them, or None; `types`: those of the schema. Keeps Python's
// objects until ReleaseDeferred. Needs the GIL. InvalidArgument names the column. May throw nb::python_error.
absl::StatusOr<IncomingBatch> LookAtBatch(nanobind::handle data, const ColumnTypes& types);
// Needs the GIL, and releases it to copy.
absl::StatusOr<Batch> MakeBatch(IncomingBatch incoming);
// Both steps.
absl::StatusOr<Batch> BatchOf(nanobind::handle data, const ColumnTypes& types);

// The batch as rows 0, 1, 2, …, over the same memory.
Rows RowsOf(Batch batch);

}  // namespace tdock::python
