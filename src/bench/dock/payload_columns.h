// The columns of a producer of few large rows.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tdock/column.h"

namespace tdock::bench {

// 1,024 rows of 9 columns of 8,192 float32. 64 rows, or 16 below, where `quick` is set.
absl::StatusOr<std::vector<Column>> DenseColumns(bool quick);
// As many bytes, a third of them in ragged columns and a third in strings, of any length up to twice the mean.
absl::StatusOr<std::vector<Column>> MixedColumns(bool quick);
// 256 MiB in 256 rows of so many columns.
absl::StatusOr<std::vector<Column>> WideColumns(bool quick, int64_t columns);

}  // namespace tdock::bench
