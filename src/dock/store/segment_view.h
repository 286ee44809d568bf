// What a server shares with another process of this host: its segments, which are read-only there, and the upload area,
// which both write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "dock/store/memory_file.h"
#include "tdock/buffer.h"

namespace tdock::dock {

// The segments (dock/store/segment_memory.h) of a server, as its client maps them. Thread-safe.
class SegmentMap {
 public:
  // Maps the first `bytes` of the segment read-only, and keeps the file open for LookPrivately, unless this process has
  // half of its descriptors open. Does nothing if it is mapped already. InvalidArgument unless it is a memory file of
  // at least that size that is sealed against shrinking; ResourceExhausted if there is no room.
  absl::Status Add(uint64_t segment, const std::shared_ptr<const FileDescriptor>& file, size_t bytes)
      TDOCK_EXCLUDES(mu_);

  // The bytes [offset, offset + bytes) of the segment, which stay mapped while the buffer lives; the server keeps their
  // contents as long as it has promised. NotFound without such a segment, InvalidArgument beyond its end.
  absl::StatusOr<Buffer> Look(uint64_t segment, uint64_t offset, uint64_t bytes) const TDOCK_EXCLUDES(mu_);

  // The same bytes as those, which lie in one segment, as writable memory: pages are copied when they are written, and
  // each buffer has its own. Those that are not written show what the server keeps there, so it must keep it as long as
  // the buffer lives. The buffer is null if `bytes` lie in no segment, the file is not open, or there is no room.
  Buffer LookPrivately(std::span<const std::byte> bytes) const TDOCK_EXCLUDES(mu_);

  bool Has(uint64_t segment) const TDOCK_EXCLUDES(mu_);

  // Unmaps the segment, if it is mapped, once the last buffer in it is gone.
  void Forget(uint64_t segment) TDOCK_EXCLUDES(mu_);

 private:
  struct Segment {
    std::shared_ptr<const Mapping> mapping;
    std::shared_ptr<const FileDescriptor> file;  // null if it is not kept open
  };

  // The segment that the byte lies in, or null.
  Segment Find(const std::byte* data) const TDOCK_EXCLUDES(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, Segment> segments_ TDOCK_GUARDED_BY(mu_);
};

// The area through which a client sends bytes to a server: slots of equal size, which both sides map and write. The
// other side may change any byte at any time, and its claims about the contents may be false: copy a slot out, then
// check the copy. Neither side can shrink the area, so neither can make the other fault. Immutable except for the
// bytes, so thread-safe.
//
//   | slot 0      | slot 1      | slot 2      |
class UploadArea {
 public:
  // For the server. InvalidArgument for no slots, empty slots, or more than 2^48 bytes; ResourceExhausted if there is
  // no room.
  static absl::StatusOr<UploadArea> Make(uint64_t slots, uint64_t slot_bytes);
  // For the client, with the server's file(); `fd` may be closed afterwards. InvalidArgument also for any other file.
  static absl::StatusOr<UploadArea> Map(int fd, uint64_t slots, uint64_t slot_bytes);

  // The first `bytes` of a slot, while the area or a copy of it lives. InvalidArgument if there is no such slot, or if
  // it is smaller.
  absl::StatusOr<std::span<std::byte>> Slot(uint64_t slot, uint64_t bytes) const;

  uint64_t slots() const { return slots_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // To be sent to the client. Null on the client's side.
  const std::shared_ptr<const FileDescriptor>& file() const { return file_; }

 private:
  UploadArea(uint64_t slots, uint64_t slot_bytes, std::shared_ptr<const FileDescriptor> file,
             std::shared_ptr<const Mapping> mapping);

  uint64_t slots_;
  uint64_t slot_bytes_;
  std::shared_ptr<const FileDescriptor> file_;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace tdock::dock
