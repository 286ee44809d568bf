// How padding is marked. A call that is padded gives every rank the same number of rows by repeating rows; the copies
// are worth nothing, and nobody may train on them or count them.
//
// Every batch of a padded call, with padding or without, has the column "row_weights", dense float32[]: 1 for a real
// row, 0 for a copy. A batch without the column is all real. A worker
//
//   - multiplies what it sums by the weights (RowWeights), and divides by their sum; or
//   - begins with the real rows only (RealRows), and returns only these.
//
// The result of a rank may have a row for each row of the argument, or for each real one; or it has another number of
// rows, and "row_weights" among its columns. The group removes the copies and the column.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/dispatch/value.h"
#include "tdock/column.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {

inline constexpr char kRowWeights[] = "row_weights";

// Dense float32[]: the weight of each row. InvalidArgument if the column "row_weights" has another type.
absl::StatusOr<Column> RowWeights(const MetaBatch& batch);

// The rows whose weight is not 0, without the column. Shares memory if the copies are at the end. Errors as above.
absl::StatusOr<MetaBatch> RealRows(const MetaBatch& batch);

// Fetches the named columns of rows, in their order, from a dock; the meta of the result is ignored. Thread-safe.
using RowFetcher = std::function<absl::StatusOr<MetaBatch>(const RowsRef& rows, absl::Time deadline)>;

// The batch that `rows` refers to, with its meta, and "row_weights" if the call was padded. FailedPrecondition without
// a fetcher; Internal if it gave another number of rows.
absl::StatusOr<MetaBatch> FetchRows(const RowsRef& rows, const RowFetcher& fetch, absl::Time deadline);

}  // namespace tdock::runtime
