// Text in columns.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "tdock/batch.h"

namespace tdock::dock {

// Without making a type to compare with: every column of a put is asked.
inline bool IsText(const ColumnType& type) { return type.kind == ColumnKind::kBytes && type.dtype == DType::kI8; }

// InvalidArgument, naming the column, row and position, if a row of these columns of bytes, given by their positions in
// the batch, is not UTF-8 and so could not be read as text.
absl::Status CheckText(const Batch& batch, std::span<const size_t> columns);

}  // namespace tdock::dock
