// Limits on the number of things, so that a small request takes little time. docs/dock.md lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tdock::dock {

inline constexpr size_t kMaxPartitions = size_t{1} << 16;
// Of a partition: as many as a frame may have, including those that only consumers name.
inline constexpr size_t kMaxColumns = 4096;
// Of a partition; also the limit on the names in retain_for.
inline constexpr size_t kMaxConsumers = 4096;
inline constexpr int64_t kMaxRowsPerPut = int64_t{1} << 24;
// The rows of a fetch times its columns.
inline constexpr size_t kMaxFetchedCells = size_t{1} << 28;
inline constexpr int64_t kMaxGroupSize = int64_t{1} << 14;
// Of a row, over all puts.
inline constexpr size_t kMaxTags = 1024;
// Of one partition: every change checks whether it ends one of these waits.
inline constexpr size_t kMaxWaitingFetches = size_t{1} << 14;
inline constexpr size_t kMaxWaitingPuts = size_t{1} << 12;

}  // namespace tdock::dock
