// Conversions of whole batches.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "python/incoming.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::python {

using ColumnTypes = std::map<std::string, ColumnType, std::less<>>;

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

// `data`: a dict of columns, as columns_in.h accepts them, or None; `types`: those of the schema. Keeps Python's
// objects until ReleaseDeferred. Needs the GIL. InvalidArgument names the column. May throw nb::python_error.
absl::StatusOr<IncomingBatch> LookAtBatch(nanobind::handle data, const ColumnTypes& types);
// Needs the GIL, and releases it to copy.
absl::StatusOr<Batch> MakeBatch(IncomingBatch incoming);
// Both steps.
absl::StatusOr<Batch> BatchOf(nanobind::handle data, const ColumnTypes& types);

// The batch as rows 0, 1, 2, …, over the same memory.
Rows RowsOf(Batch batch);

}  // namespace tdock::python
