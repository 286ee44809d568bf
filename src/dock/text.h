// Text in columns.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "tdock/batch.h"

namespace tdock {

// InvalidArgument, naming column, row and place, if a column of the batch that is to be text holds a row that is no
// UTF-8: nobody could read it as text. `is_text` says it of each column, whatever type the batch gives it.
absl::Status CheckText(const Batch& batch, const std::vector<bool>& is_text);

}  // namespace tdock
