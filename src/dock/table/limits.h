// How much of each thing there may be, so that a small request costs little time. docs/dock.md lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tdock {

inline constexpr size_t kMaxPartitions = size_t{1} << 16;
// Of a partition: as many as a frame may have, those included that consumers only name.
inline constexpr size_t kMaxColumns = 4096;
// Of a partition, and names that its rows must outlive.
inline constexpr size_t kMaxConsumers = 4096;
inline constexpr int64_t kMaxRowsPerPut = int64_t{1} << 24;
inline constexpr int64_t kMaxGroupSize = int64_t{1} << 14;
// Of a row, whichever puts gave them.
inline constexpr size_t kMaxTags = 1024;
// Of one partition: every change looks whether it ends one of these waits.
inline constexpr size_t kMaxWaitingFetches = size_t{1} << 14;
inline constexpr size_t kMaxWaitingPuts = size_t{1} << 12;

}  // namespace tdock
