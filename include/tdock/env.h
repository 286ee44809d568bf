// Files, behind an interface that a program or a test can replace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// A file being written. Not thread-safe. An error names the file; after one, the file keeps what was written before.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view data) = 0;
  // Returns once everything appended would survive a power failure.
  virtual absl::Status Sync() = 0;
  // Further calls fail. The destructor closes too, but cannot report.
  virtual absl::Status Close() = 0;
};

// A file mapped read-only. The bytes are valid while the object lives. Thread-safe.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Releases the memory behind these bytes to the system. They may be read again, from the disk if necessary.
  virtual void Release(std::span<const std::byte> /*bytes*/) const {}
};

// A file being read, from any position. Thread-safe. An error names the file.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // The size when it was opened.
  virtual uint64_t size() const = 0;
  // Fills `into` from byte `offset` on. OutOfRange if the file ends before that, as it does if it was truncated
  // meanwhile.
  virtual absl::Status ReadAt(uint64_t offset, std::span<char> into) = 0;
};

enum class WriteMode { kTruncate, kAppend };

// Thread-safe. Errors carry the path and the system's reason: NotFound, PermissionDenied, ResourceExhausted (full
// disk, quota, size limit), AlreadyExists, or Unavailable for anything else.
class Env {
 public:
  virtual ~Env() = default;

  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) = 0;
  // InvalidArgument for anything but a regular file.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) = 0;
  // Replaces `to` atomically, and syncs its folder. If only the sync fails, `to` is replaced, but may be the old file
  // again after a power failure; the error says "sync the folder".
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Removes a file, or a folder with everything in it; links in it, but not what they lead to. Nothing there is no
  // error.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
  virtual absl::Status CreateFolders(const std::string& path) = 0;
  // AlreadyExists if anything has that name: of several processes that try, exactly one succeeds.
  virtual absl::Status CreateNewFolder(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  static Env& Real();
};

}  // namespace tdock
