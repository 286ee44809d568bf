#include "dock/service/console/load.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace tdock::console {
namespace {

absl::Status Check(const LoadOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (options.rows < 1 || options.columns < 1 || options.cell_bytes < 4 || options.cell_bytes % 4 != 0 ||
      options.rows > kMost / options.columns / options.cell_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("puts of ", options.rows, " rows with ", options.columns, " columns of ", options.cell_bytes,
                     " bytes: each must be positive, the bytes of a cell a multiple of 4, "
                     "and all together at most a gigabyte"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Load(Dock& dock, const LoadOptions& options, std::ostream& out) {
  TDOCK_RETURN_IF_ERROR(Check(options));
  const int64_t floats = options.cell_bytes / 4;
  const std::vector<float> values(static_cast<size_t>(options.rows * floats), 1.0f);
  PartitionOptions partition{.name = options.partition};
  for (int64_t c = 0; c < options.columns; ++c) {
    partition.columns.push_back({absl::StrCat("column", c), ColumnType::Dense(DType::kF32, {floats})});
  }
  TDOCK_RETURN_IF_ERROR(dock.CreatePartition(partition));
  Clock& clock = Clock::Real();
  const absl::Time begun = clock.Now();
  int64_t rows = 0;
  while (clock.Now() < begun + options.duration) {
    PutRequest put{.partition = options.partition};
    for (const ColumnSpec& column : partition.columns) {
      TDOCK_RETURN_IF_ERROR(put.batch.Add(column.name, Column::FromValues<float>(values, {floats})));
    }
    TDOCK_RETURN_IF_ERROR(dock.Put(put).status());
    rows += options.rows;
  }
  out << std::llround(static_cast<double>(rows) / absl::ToDoubleSeconds(clock.Now() - begun)) << " rows/s\n";
  return absl::OkStatus();
}

}  // namespace tdock::console
