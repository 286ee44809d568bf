// Open files of the process.
#pragma once

#include <unistd.h>

namespace tdock {

// An open file or socket, closed with its last owner. Immutable, so thread-safe.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace tdock
