// Memory that other processes can map, to read it and nothing else.
//
// A segment is a file in memory (memfd), mapped by the server and then sealed: whoever is given its descriptor can
// neither write to it nor change its size. A mapping shows all of a segment, so a segment belongs to one partition for
// its life, and shows no bytes but those that this partition has or had in it. The system also refuses to give back
// parts of a sealed file, to the server too: memory returns to the system by whole segments.
//
// A segment costs a descriptor, and a view of a few bytes keeps all of it from the system. So what a partition has
// first lies on the heap, and then in segments that grow with it:
//
//   SegmentPool, of a server          what all partitions may hold together
//     SegmentMemory, of a partition   heap | segment 0 | segment 2     | segment 5            |
//     SegmentMemory                   heap | segment 1 | segment 3, of one large buffer       |
//     SegmentMemory                   heap
//
// What counts for the limit is what buffers occupy, not what segments have: free places between buffers and segments
// that are kept warm come on top of it. They are bounded too: all segments and what lies on the heap have at most twice
// the limit, and warm segments go before it is passed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "dock/store/cell_memory.h"
#include "dock/store/free_ranges.h"
#include "dock/store/memory_file.h"
#include "tdock/buffer.h"

namespace tdock {

struct SegmentPoolOptions {
  // What the buffers of all partitions may occupy together, each a multiple of 64 bytes.
  size_t limit_bytes = SIZE_MAX;
  // For messages: what sets the limit.
  std::string limit_name = "limit_bytes";
  // What a partition without segments may have on the heap.
  size_t heap_bytes = size_t{256} << 10;
  // Segments have an eighth of what their partition holds, or room for some buffers like the first, but no less and no
  // more than this, unless a buffer needs a larger one.
  size_t least_segment_bytes = size_t{256} << 10;
  size_t most_segment_bytes = size_t{64} << 20;
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

  // In buffers, each a multiple of 64 bytes: what the limit is for.
  size_t held_bytes() const;
  // In segments, but in no buffer: free places and what is kept warm.
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

// The memory of one partition. Its first small buffers lie on the heap; others of all sizes lie in its segments, at
// multiples of 64 bytes, and what is freed is found again warm. Buffers may outlive it; segments in which nothing is
// used then go at once. Thread-safe.
class SegmentMemory final : public CellMemory {
 public:
  explicit SegmentMemory(SegmentPool& pool);
  ~SegmentMemory() override;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  // Throws MemoryLimitReached beyond the limit of the pool, or where the system has no more segments, saying which
  // limit that is; and std::bad_alloc. The contents are unspecified, in a segment never another partition's. No bytes
  // are in no segment.
  Buffer Allocate(size_t size_bytes) override;
  Buffer AllocateToReplace(size_t size_bytes) override;

  // More than seven eighths of the limit are held.
  bool IsScarce() const override;

  // Of a buffer on the heap it knows where that begins.
  bool Holds(const std::byte* data) const override;

  // Where another process finds the byte; nothing if it lies in no segment of this partition, but on the heap, or is
  // not of this memory. It stays there while a buffer with it lives.
  std::optional<SegmentPlace> Locate(const std::byte* data) const;

  // NotFound if the segment is not there or not of this partition.
  absl::StatusOr<SegmentFile> Open(uint64_t segment) const;

 private:
  friend class SegmentPool;
  class Partition;

  const std::shared_ptr<Partition> partition_;
};

}  // namespace tdock
