#include "runtime/dispatch/row_weights.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::runtime {

absl::StatusOr<Column> RowWeights(const MetaBatch& batch) {
  if (const Column* column = batch.columns().Find(kRowWeights)) {
    if (column->type() == ColumnType::Dense(DType::kF32)) return *column;
    return absl::InvalidArgumentError(absl::StrCat("column '", kRowWeights, "' marks padding and holds float32[], not ",
                                                   ToString(column->type()), "; rename it"));
  }
  return Column::FromValues(std::vector<float>(static_cast<size_t>(batch.rows()), 1.0F));
}

absl::StatusOr<MetaBatch> RealRows(const MetaBatch& batch) {
  if (batch.columns().Find(kRowWeights) == nullptr) return batch;
  TDOCK_ASSIGN_OR_RETURN(const Column column, RowWeights(batch));
  TDOCK_ASSIGN_OR_RETURN(const std::span<const float> weights, column.Values<float>());
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch::Popped popped, batch.Pop({kRowWeights}));
  std::vector<int64_t> real;
  for (size_t row = 0; row < weights.size(); ++row) {
    if (weights[row] != 0) real.push_back(static_cast<int64_t>(row));
  }
  const int64_t count = static_cast<int64_t>(real.size());
  if (real.empty() || real.back() == count - 1) return popped.rest.Slice(0, popped.rest.columns().empty() ? 0 : count);
  return popped.rest.SelectRows(real);
}

absl::StatusOr<MetaBatch> FetchRows(const RowsRef& rows, const RowFetcher& fetch, absl::Time deadline) {
  if (fetch == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot fetch ", Value(rows).Describe(), ": no dock was given to fetch rows from"));
  }
  absl::StatusOr<MetaBatch> fetched = fetch(rows, deadline);
  if (!fetched.ok()) return Annotate(fetched.status(), absl::StrCat("fetching ", Value(rows).Describe()));
  Batch columns = fetched->columns();
  if (columns.rows() != static_cast<int64_t>(rows.rows.size())) {
    return absl::InternalError(absl::StrCat("fetching ", Value(rows).Describe(), " gave ", columns.rows(), " rows"));
  }
  if (rows.real_rows.has_value()) {
    std::vector<float> weights(rows.rows.size());
    std::fill_n(weights.begin(), std::clamp<int64_t>(*rows.real_rows, 0, columns.rows()), 1.0F);
    TDOCK_RETURN_IF_ERROR(columns.Add(kRowWeights, Column::FromValues(weights)));
  }
  return MetaBatch(std::move(columns), rows.meta);
}

}  // namespace tdock::runtime
