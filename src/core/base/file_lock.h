// A lock on a file, which dies with its holder.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// Held while the object lives, against other processes and other objects of this one. The system releases it when the
// process ends, however it ends; the file stays. Over NFS it holds where the server supports locks. Thread-safe.
class FileLock {
 public:
  // Creates the file if it is missing, locks it, and writes `holder` into it: one line, for people and programs to
  // read. AlreadyExists, with what the holder has written, if somebody has the lock. Does not wait.
  static absl::StatusOr<std::unique_ptr<FileLock>> Take(const std::string& path, absl::string_view holder);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  const int fd_;
};

// Whether somebody holds the lock; false if there is no such file.
absl::StatusOr<bool> IsLocked(const std::string& path);

}  // namespace tdock
