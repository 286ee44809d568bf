// A column on its way into the dock: first it is looked at, with the GIL; then, without it, made one piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "python/object_refs.h"
#include "tdock/column.h"

namespace tdock::python {

struct Incoming {
  ColumnType type = {};
  int64_t rows = 0;
  // Where the rows are, one after another: several of them in one part where they lie side by side.
  std::vector<std::span<const std::byte>> parts = {};
  // Of each row of a column that is not dense, in items.
  std::vector<int64_t> lengths = {};
  // What keeps the parts where they are.
  std::shared_ptr<const void> owner = {};
  // Whether the type would be another one if the schema did not say it.
  bool by_schema = false;
};

// The column: a view if it is in one part that is aligned as the dock wants it, else a copy. The GIL is not needed, and
// should not be held.
absl::StatusOr<Column> MakeColumn(Incoming incoming);

}  // namespace tdock::python
