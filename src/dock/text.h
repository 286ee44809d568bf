// Text in columns.
#pragma once

#include "absl/status/status.h"
#include "tdock/batch.h"

namespace tdock {

// InvalidArgument, naming column, row and place, if a text column of the batch holds a row that is no UTF-8: nobody
// could read it as text. Bytes that are put into a column of text are not looked into.
absl::Status CheckText(const Batch& batch);

}  // namespace tdock
