// What no stage may write.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::trainer {

// Internal, naming the column, the row and the position, if a floating-point number of the columns, which a stage wrote
// for the rows `ids`, is not finite.
absl::Status CheckFinite(const Batch& columns, std::span<const RowId> ids);

}  // namespace tdock::trainer
