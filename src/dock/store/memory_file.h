// Files that live in memory only, to be mapped by several processes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tdock {

// An open file, closed with its last owner. Immutable, so thread-safe.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int fd() const { return fd_; }

 private:
  const int fd_;
};

// A file as memory, unmapped with its last owner; the file may be closed before. Thread-safe as the bytes are.
class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  // The first `bytes` > 0 of the file, shared with whoever else maps it, at a multiple of 2 MiB.
  // ResourceExhausted if there is no room, PermissionDenied if a seal or the mode of the file forbids the access.
  static absl::StatusOr<std::shared_ptr<const Mapping>> Make(int fd, size_t bytes, Access access);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Only of a mapping to read and write.
  std::byte* writable() const { return data_; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* const data_;
  const size_t size_;
};

// A file of `bytes` zeros in memory, which takes seals (fcntl F_ADD_SEALS) and is not inherited by other programs.
// ResourceExhausted if there is no memory, or the process has no descriptor left beside `leave` (or a quarter of all,
// if that is less) for other uses.
absl::StatusOr<std::shared_ptr<const FileDescriptor>> MakeMemoryFile(const char* name, size_t bytes,
                                                                     unsigned leave = 0);

// Makes sure that nobody can change the seals or the size. Unavailable if the system refuses.
enum class SealedAgainst { kResizing, kResizingAndFutureWriting };
absl::Status Seal(int fd, SealedAgainst against);

// InvalidArgument unless it is a file in memory of at least `bytes`, which nobody can make smaller: reading a mapping
// of another kind may end the process.
absl::Status CheckCannotShrink(int fd, size_t bytes);

}  // namespace tdock
