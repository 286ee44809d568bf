// Text in columns.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "tdock/batch.h"

namespace tdock {

// InvalidArgument, naming column, row and place, if a row of these columns of bytes, given by their places in the
// batch, is no UTF-8: nobody could read it as text.
absl::Status CheckText(const Batch& batch, std::span<const size_t> columns);

}  // namespace tdock
