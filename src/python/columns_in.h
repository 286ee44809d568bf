// Columns from Python data.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "absl/status/statusor.h"
#include "python/incoming.h"

namespace tdock::python {

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

}  // namespace tdock::python
