// NaN in columns.
#pragma once

#include "absl/status/status.h"
#include "tdock/batch.h"

namespace tdock::dock {

// InvalidArgument, naming column, row and position, if a floating-point column of the batch holds a NaN.
absl::Status CheckNoNan(const Batch& batch);

}  // namespace tdock::dock
