#include "bench/dock/payload_columns.h"

#include <cstring>
#include <utility>

#include "core/base/rng.h"
#include "core/base/status.h"
#include "dock/store/warm_memory.h"

namespace tdock::bench {
namespace {

absl::StatusOr<Column> Dense(Memory& memory, int64_t rows, int64_t floats) {
  Buffer values = memory.Allocate(static_cast<size_t>(rows * floats) * sizeof(float));
  std::memset(values.mutable_data(), 1, values.size());
  return Column::MakeDense(DType::kF32, {floats}, rows, std::move(values));
}

// Rows of any length up to twice `mean_items`.
absl::StatusOr<Column> Varying(Memory& memory, bool ragged, int64_t rows, int64_t mean_items, uint64_t seed) {
  Rng rng(seed);
  Buffer offsets = memory.Allocate(static_cast<size_t>(rows + 1) * sizeof(int64_t));
  int64_t* const offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  offset[0] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    offset[row + 1] = offset[row] + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(2 * mean_items + 1)));
  }
  Buffer values = memory.Allocate(static_cast<size_t>(offset[rows]) * (ragged ? sizeof(float) : 1));
  std::memset(values.mutable_data(), 1, values.size());
  if (ragged) return Column::MakeRagged(DType::kF32, {}, std::move(values), std::move(offsets));
  return Column::MakeBytes(std::move(values), std::move(offsets));
}

}  // namespace

absl::StatusOr<std::vector<Column>> DenseColumns(bool quick) {
  dock::WarmMemory memory;
  std::vector<Column> columns;
  for (int c = 0; c < 9; ++c) {
    TDOCK_ASSIGN_OR_RETURN(Column column, Dense(memory, quick ? 64 : 1024, 8192));
    columns.push_back(std::move(column));
  }
  return columns;
}

absl::StatusOr<std::vector<Column>> MixedColumns(bool quick) {
  dock::WarmMemory memory;
  std::vector<Column> columns;
  const int64_t rows = quick ? 64 : 1024, floats = 8192;
  for (uint64_t c = 0; c < 9; ++c) {
    const bool dense = c % 3 == 0, ragged = c % 3 == 1;
    TDOCK_ASSIGN_OR_RETURN(Column column, dense    ? Dense(memory, rows, floats)
                                          : ragged ? Varying(memory, ragged, rows, floats, c)
                                                   : Varying(memory, ragged, rows, floats * sizeof(float), c));
    columns.push_back(std::move(column));
  }
  return columns;
}

absl::StatusOr<std::vector<Column>> WideColumns(bool quick, int64_t columns) {
  dock::WarmMemory memory;
  std::vector<Column> made;
  for (int64_t c = 0; c < columns; ++c) {
    TDOCK_ASSIGN_OR_RETURN(Column column, Dense(memory, quick ? 16 : 256, (int64_t{1} << 18) / columns));
    made.push_back(std::move(column));
  }
  return made;
}

}  // namespace tdock::bench
