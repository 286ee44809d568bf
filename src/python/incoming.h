// A column on its way into the dock: first inspected, with the GIL; then made contiguous, without it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dock/store/warm_memory.h"
#include "python/object_refs.h"
#include "tdock/column.h"

namespace tdock::python {

struct Incoming {
  ColumnType type = {};
  int64_t rows = 0;
  // The memory of the rows, in order: adjacent rows share a part.
  std::vector<std::span<const std::byte>> parts = {};
  // The length of each row of a column that is not dense, in items.
  std::vector<int64_t> lengths = {};
  // Keeps the parts alive.
  std::shared_ptr<const void> owner = {};
  // Whether the type would be different without the schema.
  bool by_schema = false;
};

// Of this process: its threads are not in those that are forked from it. Kept warm for a few seconds, so that the next
// copies touch no fresh pages.
dock::WarmMemory& MemoryForCopies();

// The column: a view if it is in one part with the alignment that the dock needs, otherwise a copy. Does not need the
// GIL, which should not be held.
absl::StatusOr<Column> MakeColumn(Incoming incoming);

}  // namespace tdock::python
