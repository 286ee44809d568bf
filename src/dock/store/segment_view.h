// What another process of this host shares: its segments, which are only read, and the area that both write to.
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

namespace tdock {

// The segments (dock/store/segment_memory.h) of a server, as its client sees them. Thread-safe.
class SegmentMap {
 public:
  // Maps the first `bytes` of the segment to be read; `fd` may be closed afterwards. Nothing happens if it is here
  // already. InvalidArgument unless it is a file in memory of at least so many bytes that nobody can make smaller;
  // ResourceExhausted if there is no room.
  absl::Status Add(uint64_t segment, int fd, size_t bytes) TDOCK_EXCLUDES(mu_);

  // The bytes [offset, offset + bytes) of the segment, which stay mapped while the buffer lives; what they hold is kept
  // by the server as long as it promised. NotFound without such a segment, InvalidArgument beyond its end.
  absl::StatusOr<Buffer> Look(uint64_t segment, uint64_t offset, uint64_t bytes) const TDOCK_EXCLUDES(mu_);

  bool Has(uint64_t segment) const TDOCK_EXCLUDES(mu_);

  // Unmaps the segment, if it is here, when the last buffer with bytes of it is gone.
  void Forget(uint64_t segment) TDOCK_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Mapping>> mappings_ TDOCK_GUARDED_BY(mu_);
};

// Through which a client gives bytes to a server: slots of equal size, which both sides map and write. The other side
// may change any byte at any time, and it may lie about what is there: copy a slot out, then check the copy. No side
// can make the area smaller, so none can make the other fault. Immutable but for the bytes, so thread-safe.
//
//   | slot 0      | slot 1      | slot 2      |
class UploadArea {
 public:
  // By the server. InvalidArgument for no slots, empty ones, or more than 2^48 bytes; ResourceExhausted if there is no
  // room.
  static absl::StatusOr<UploadArea> Make(uint64_t slots, uint64_t slot_bytes);
  // By the client, of the server's file(); `fd` may be closed afterwards. InvalidArgument also if it is no such file.
  static absl::StatusOr<UploadArea> Map(int fd, uint64_t slots, uint64_t slot_bytes);

  // The first `bytes` of a slot, while the area or a copy of it lives. InvalidArgument if there is no such slot, or if
  // it has fewer.
  absl::StatusOr<std::span<std::byte>> Slot(uint64_t slot, uint64_t bytes) const;

  uint64_t slots() const { return slots_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // To be sent to the client. Null on its side.
  const std::shared_ptr<const FileDescriptor>& file() const { return file_; }

 private:
  UploadArea(uint64_t slots, uint64_t slot_bytes, std::shared_ptr<const FileDescriptor> file,
             std::shared_ptr<const Mapping> mapping);

  uint64_t slots_;
  uint64_t slot_bytes_;
  std::shared_ptr<const FileDescriptor> file_;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace tdock
