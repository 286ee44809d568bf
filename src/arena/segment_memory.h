// Memory that other processes can map, to read it and nothing else.
//
// A segment is a file in memory (memfd), mapped by the server and then sealed: whoever is given its descriptor can
// neither write to it nor change its size. A mapping shows all of a segment, so a segment belongs to one partition for
// its life, and shows no bytes but those that this partition has or had in it. The seals also forbid to give back parts
// of a segment: memory returns to the system by whole segments.
//
//   SegmentPool, of a server          what all partitions may take together
//     SegmentMemory, of a partition   | segment 0 | segment 2 |
//     SegmentMemory                   | segment 1 | segment 3, of one large buffer |
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "arena/free_ranges.h"
#include "arena/memory_file.h"
#include "base/clock.h"
#include "tdock/buffer.h"

namespace tdock {

struct SegmentPoolOptions {
  // What the segments of all partitions may have together, used or not.
  size_t limit_bytes = SIZE_MAX;
  // For messages: what sets the limit.
  std::string limit_name = "limit_bytes";
  // Of a segment, unless a buffer needs a larger one or the limit leaves less. A multiple of 2 MiB.
  size_t segment_bytes = size_t{64} << 20;
  // A segment in which nothing was used for so long goes back to the system.
  absl::Duration keep = absl::Seconds(4);
  Clock& clock = Clock::Real();
};

// The segments of a whole server. Thread-safe. It may be destroyed before the memories that come from it: then they
// keep no empty segment.
class SegmentPool {
 public:
  explicit SegmentPool(const SegmentPoolOptions& options = {});
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // In buffers, each a multiple of 64 bytes.
  size_t held_bytes() const;
  // In segments, but in no buffer.
  size_t warm_bytes() const;

  // Whether the segment is there. Numbers of segments are never used again, so one that is gone stays so; whoever maps
  // it keeps its memory from the system.
  bool Exists(uint64_t segment) const;
  // How many segments are gone: while this stays the same, so does what Exists() says of those that were there.
  uint64_t closed_segments() const;

 private:
  friend class SegmentMemory;
  class State;

  const std::shared_ptr<State> state_;
};

// A segment as it is sent to another process.
struct SegmentFile {
  std::shared_ptr<const FileDescriptor> file;
  size_t bytes = 0;
};

// The memory of one partition. Buffers of all sizes lie in its segments, at multiples of 64 bytes; what is freed is
// found again warm. Buffers may outlive it; segments in which nothing is used then go at once. Thread-safe.
class SegmentMemory final : public Memory {
 public:
  explicit SegmentMemory(SegmentPool& pool);
  ~SegmentMemory() override;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  // Throws MemoryLimitReached beyond the limit of the pool, and std::bad_alloc where the system has no more memory or
  // files. The contents are unspecified, but never another partition's. No bytes are in no segment.
  Buffer Allocate(size_t size_bytes) override;

  bool Holds(const std::byte* data) const override { return Locate(data).has_value(); }

  // Where another process finds the byte; nothing if it lies in no segment of this partition. It stays there while a
  // buffer with it lives.
  std::optional<SegmentPlace> Locate(const std::byte* data) const;

  // NotFound if the segment is not there or not of this partition.
  absl::StatusOr<SegmentFile> Open(uint64_t segment) const;

 private:
  friend class SegmentPool;
  class Partition;

  const std::shared_ptr<Partition> partition_;
};

}  // namespace tdock
