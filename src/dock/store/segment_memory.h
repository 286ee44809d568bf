// Memory that other processes can map read-only.
//
// A segment is a memory file (memfd), mapped by the server and then sealed: a process that gets its descriptor can
// neither write to it nor resize it. A mapping exposes the whole segment, so a segment belongs to one partition for
// life, and never holds any other partition's bytes. The system also refuses to free parts of a sealed file, even for
// the server: memory returns to the system by whole segments.
//
// A segment takes a descriptor, and a view of a few bytes keeps all of it alive. So the first data of a partition lies
// on the heap, and then in segments that grow with it:
//
//   SegmentPool, of a server          the limits for all partitions together
//     SegmentMemory, of a partition   heap | segment 0 | segment 2     | segment 5            |
//     SegmentMemory                   heap | segment 1 | segment 3, of one large buffer       |
//     SegmentMemory                   heap
//
// The limit applies to what buffers occupy, not to the size of segments: free space between buffers and cached segments
// come on top of it. They are bounded too: all segments and the heap part together have at most twice the limit, and
// cached segments are freed before that is exceeded.
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

namespace tdock::dock {

struct SegmentPoolOptions {
  // What the buffers of all partitions may occupy in total, each rounded up to a multiple of 64 bytes.
  size_t limit_bytes = SIZE_MAX;
  // For messages: the name of the setting of the limit.
  std::string limit_name = "limit_bytes";
  // What a partition may have on the heap before it has segments.
  size_t heap_bytes = size_t{256} << 10;
  // A segment has an eighth of what its partition holds, or room for some buffers like the first, but at least and at
  // most these sizes, unless a buffer needs a larger one.
  size_t least_segment_bytes = size_t{256} << 10;
  size_t most_segment_bytes = size_t{64} << 20;
  // A segment that has been unused for this long is returned to the system.
  absl::Duration keep = absl::Seconds(4);
  Clock& clock = Clock::Real();
};

// The segments of a whole server. Thread-safe. It may be destroyed before the memories that come from it: then these
// keep no empty segments.
class SegmentPool {
 public:
  explicit SegmentPool(const SegmentPoolOptions& options = {});
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // In buffers, each rounded up to a multiple of 64 bytes: what the limit applies to.
  size_t held_bytes() const;
  // In segments, but in no buffer: free space and cached segments.
  size_t warm_bytes() const;

  // Whether the segment exists. Segment numbers are never reused, so one that is gone stays gone; a process that still
  // maps it keeps its memory allocated.
  bool Exists(uint64_t segment) const;
  // How many segments are gone: while this is unchanged, so is the result of Exists() for the segments that existed.
  uint64_t closed_segments() const;

 private:
  friend class SegmentMemory;
  class State;

  const std::shared_ptr<State> state_;
};

// A segment, in the form in which it is sent to another process.
struct SegmentFile {
  std::shared_ptr<const FileDescriptor> file;
  size_t bytes = 0;
};

// The memory of one partition. Its first small buffers lie on the heap; all others lie in its segments, at multiples of
// 64 bytes, and freed memory is reused while it is warm. Buffers may outlive it; then segments are freed as soon as
// they are unused. Thread-safe.
class SegmentMemory final : public CellMemory {
 public:
  explicit SegmentMemory(SegmentPool& pool);
  ~SegmentMemory() override;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  // Throws MemoryLimitReached beyond the limit of the pool, or if the system has no more segments, saying which limit
  // that is; and std::bad_alloc. The contents are unspecified, but in a segment never another partition's. Empty
  // buffers lie in no segment.
  Buffer Allocate(size_t size_bytes) override;
  Buffer AllocateToReplace(size_t size_bytes) override;

  // Whether more than seven eighths of the limit are held.
  bool IsScarce() const override;

  // For a buffer on the heap, only its beginning is recognised.
  bool Holds(const std::byte* data) const override;

  // Where another process finds the byte; nothing if it is not in a segment of this partition. The place is valid while
  // a buffer with the byte lives.
  std::optional<SegmentPlace> Locate(const std::byte* data) const;

  // NotFound if the segment does not exist or belongs to another partition.
  absl::StatusOr<SegmentFile> Open(uint64_t segment) const;

 private:
  friend class SegmentPool;
  class Partition;

  const std::shared_ptr<Partition> partition_;
};

}  // namespace tdock::dock
