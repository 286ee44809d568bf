// Files in memory (memfd), which several processes can map.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file_descriptor.h"

namespace tdock::dock {

// A mapping of a file, unmapped with its last owner; the file may be closed before. Thread-safe as far as its bytes
// are.
class Mapping {
 public:
  // kPrivate: to read and write, but a page that is written is copied first, and only this mapping has the copy.
  enum class Access { kRead, kReadWrite, kPrivate };

  // `bytes` > 0 of the file from `offset` on, a multiple of 2 MiB, shared with whoever else maps it, unless it is
  // private, at a multiple of 2 MiB. ResourceExhausted if there is no room, PermissionDenied if a seal or the mode of
  // the file forbids the access.
  static absl::StatusOr<std::shared_ptr<const Mapping>> Make(int fd, size_t bytes, Access access, size_t offset = 0);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Not for a mapping to read.
  std::byte* writable() const { return data_; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* const data_;
  const size_t size_;
};

// A memory file of `bytes` zeros, which can be sealed (fcntl F_ADD_SEALS) and is not inherited by other programs.
// ResourceExhausted if there is no memory, or the process has no descriptors left except `leave` (or a quarter of all,
// if that is less) for other uses.
absl::StatusOr<std::shared_ptr<const FileDescriptor>> MakeMemoryFile(const char* name, size_t bytes,
                                                                     unsigned leave = 0);

// Seals the file against changes of its seals and size. Unavailable if the system refuses.
enum class SealedAgainst { kResizing, kResizingAndFutureWriting };
absl::Status Seal(int fd, SealedAgainst against);

// InvalidArgument unless it is a memory file of at least `bytes` that is sealed against shrinking: reading a mapping of
// any other file may crash the process.
absl::Status CheckCannotShrink(int fd, size_t bytes);

}  // namespace tdock::dock
