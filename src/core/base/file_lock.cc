#include "core/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

absl::Status LockError(absl::string_view doing, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", doing, " ", EscapeUnprintable(path), ": ", std::strerror(errno)));
}

constexpr int kAttempts = 10;
constexpr std::chrono::milliseconds kBetweenAttempts(5);

// What the holder has written; it may be about to write it.
std::string HolderIn(int fd) {
  std::array<char, 512> text;
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  const absl::string_view line(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const std::string holder(absl::StripSuffix(line, "\n"));
  return holder.empty() ? "another process" : holder;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Take(const std::string& path, absl::string_view holder) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return LockError("open", path);
  std::unique_ptr<FileLock> lock(new FileLock(fd));
  // Who asks IsLocked() has it for a moment.
  int error = ::flock(fd, LOCK_EX | LOCK_NB);
  for (int again = 0; error != 0 && errno == EWOULDBLOCK && again < kAttempts; ++again) {
    std::this_thread::sleep_for(kBetweenAttempts);
    error = ::flock(fd, LOCK_EX | LOCK_NB);
  }
  if (error != 0) {
    if (errno == EWOULDBLOCK)
      return absl::AlreadyExistsError(
          absl::StrCat(EscapeUnprintable(path), " is held by ", EscapeForMessage(HolderIn(fd))));
    return LockError("lock", path);
  }
  const std::string line = absl::StrCat(holder, "\n");
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, line.data(), line.size(), 0) != static_cast<ssize_t>(line.size())) {
    return LockError("write to", path);
  }
  return lock;
}

FileLock::~FileLock() { ::close(fd_); }

absl::StatusOr<bool> IsLocked(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return false;
    return LockError("open", path);
  }
  const bool free = ::flock(fd, LOCK_SH | LOCK_NB) == 0;
  const int error = errno;
  ::close(fd);
  if (free || error == EWOULDBLOCK) return !free;
  errno = error;
  return LockError("lock", path);
}

}  // namespace tdock
