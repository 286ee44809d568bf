#include "arena/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tdock {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kSmallPage = size_t{4} << 10;

// Says what failed and why, by errno.
absl::Status SystemError(absl::string_view what) {
  const int error = errno;
  const std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() { ::close(fd_); }

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Make(int fd, size_t bytes, Access access) {
  if (bytes == 0 || bytes > SIZE_MAX - kHugePage) {
    return absl::InvalidArgumentError(absl::StrCat("cannot map ", bytes, " bytes"));
  }
  // Huge pages start at multiples of their size: room for that is taken, and what lies before and behind given back.
  void* const room = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            /*fd=*/-1, /*offset=*/0);
  if (room == MAP_FAILED) return SystemError(absl::StrCat("find room for a mapping of ", bytes, " bytes"));
  std::byte* const first = static_cast<std::byte*>(room);
  std::byte* const begin = first + (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (::mmap(begin, bytes, protection, MAP_SHARED | MAP_FIXED, fd, /*offset=*/0) == MAP_FAILED) {
    const absl::Status status = SystemError(absl::StrCat("map ", bytes, " bytes"));
    ::munmap(room, bytes + kHugePage);
    return status;
  }
  if (begin > first) ::munmap(first, static_cast<size_t>(begin - first));
  std::byte* const end = begin + (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (end < first + bytes + kHugePage) ::munmap(end, static_cast<size_t>(first + bytes + kHugePage - end));
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // only advice
  try {
    return std::shared_ptr<const Mapping>(new Mapping(begin, bytes));
  } catch (const std::bad_alloc&) {
    ::munmap(begin, bytes);
    return absl::ResourceExhaustedError("no memory for a mapping");
  }
}

Mapping::~Mapping() { ::munmap(data_, size_); }

absl::StatusOr<std::shared_ptr<const FileDescriptor>> MakeMemoryFile(const char* name, size_t bytes) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("make a file in memory");
  std::shared_ptr<const FileDescriptor> file;
  try {
    file = std::make_shared<const FileDescriptor>(fd);
  } catch (const std::bad_alloc&) {
    ::close(fd);
    return absl::ResourceExhaustedError("no memory for a file in memory");
  }
  if (bytes > size_t{INT64_MAX}) return absl::ResourceExhaustedError(absl::StrCat("no file has ", bytes, " bytes"));
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("make a file in memory of ", bytes, " bytes"));
  }
  return file;
}

absl::Status Seal(int fd, SealedAgainst against) {
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (against == SealedAgainst::kResizingAndFutureWriting) seals |= F_SEAL_FUTURE_WRITE;
  return ::fcntl(fd, F_ADD_SEALS, seals) == 0 ? absl::OkStatus() : SystemError("seal a file in memory");
}

absl::Status CheckCannotShrink(int fd, size_t bytes) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return SystemError("look at a file in memory");
  const int seals = S_ISREG(status.st_mode) ? ::fcntl(fd, F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("what is to be mapped must be a file in memory that is sealed against shrinking");
  }
  if (static_cast<uint64_t>(status.st_size) >= bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a file in memory has ", status.st_size, " bytes; it must have at least ", bytes));
}

}  // namespace tdock
