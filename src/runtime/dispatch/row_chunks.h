// What can be cut by rows: a batch, or rows of a dock. Pure functions; results share the memory of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/dispatch/value.h"

namespace tdock::runtime {

// Nothing if the value is no batch and no rows of a dock.
std::optional<int64_t> RowCount(const Value& value);
// Whether it is a batch that has a meta only, which every chunk gets.
bool IsMetaOnly(const Value& value);

// The first `count` rows, which exist, without the mark of padding of rows of a dock.
absl::StatusOr<Value> FirstRows(const Value& rows, int64_t count);

// `count` chunks of consecutive rows, as many in each. InvalidArgument if the rows do not divide.
absl::StatusOr<std::vector<Value>> ChunkRows(const Value& rows, int64_t count);

// The same of rows that do not divide: the first of them follow again, as often as needed, and each chunk is marked
// (row_weights.h). InvalidArgument if there are marks already.
absl::StatusOr<std::vector<Value>> PadAndChunkRows(const Value& rows, int64_t count);

// Batches one after another, or rows of one partition with the same columns, without being fetched; nothing, if all are
// nothing. InvalidArgument, which says which of them differ, for anything else.
absl::StatusOr<Value> ConcatRows(const std::vector<Value>& parts);

}  // namespace tdock::runtime
