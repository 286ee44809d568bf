#include "dock/store/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/store/page_sizes.h"

namespace tdock::dock {
namespace {

// Describes the failed operation and the reason in errno.
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

rlim_t MostDescriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

absl::Status TooManyDescriptors(rlim_t left) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no file descriptor is left for a memory file: this process may have ", MostDescriptors(), " of them",
      left > 0 ? absl::StrCat(", of which the last ", left, " are reserved for other uses") : "",
      "; raise that limit (RLIMIT_NOFILE: ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of docker)"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Make(int fd, size_t bytes, Access access, size_t offset) {
  if (bytes == 0 || bytes > SIZE_MAX - kHugePageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot map ", bytes, " bytes"));
  }
  // Huge pages start at multiples of their size: reserves enough room for that, and returns what lies before and after.
  void* const room = ::mmap(nullptr, bytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            /*fd=*/-1, /*offset=*/0);
  if (room == MAP_FAILED) return SystemError(absl::StrCat("find address space for a mapping of ", bytes, " bytes"));
  std::byte* const first = static_cast<std::byte*>(room);
  std::byte* const begin =
      first + (kHugePageBytes - reinterpret_cast<uintptr_t>(first) % kHugePageBytes) % kHugePageBytes;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // Pages that nobody writes take no memory, so none is reserved for them.
  const int sharing = access == Access::kPrivate ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  if (::mmap(begin, bytes, protection, sharing | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    const absl::Status status = SystemError(absl::StrCat("map ", bytes, " bytes"));
    ::munmap(room, bytes + kHugePageBytes);
    return status;
  }
  if (begin > first) ::munmap(first, static_cast<size_t>(begin - first));
  std::byte* const end = begin + (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (end < first + bytes + kHugePageBytes) ::munmap(end, static_cast<size_t>(first + bytes + kHugePageBytes - end));
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // only advice
  try {
    return std::shared_ptr<const Mapping>(new Mapping(begin, bytes));
  } catch (const std::bad_alloc&) {
    ::munmap(begin, bytes);
    return absl::ResourceExhaustedError("no memory for a mapping");
  }
}

Mapping::~Mapping() { ::munmap(data_, size_); }

absl::StatusOr<std::shared_ptr<const FileDescriptor>> MakeMemoryFile(const char* name, size_t bytes, unsigned leave) {
  const rlim_t most = MostDescriptors(), left = std::min<rlim_t>(leave, most / 4);
  const int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno == EMFILE ? TooManyDescriptors(left) : SystemError("create a memory file");
  std::shared_ptr<const FileDescriptor> file;
  try {
    file = std::make_shared<const FileDescriptor>(fd);
  } catch (const std::bad_alloc&) {
    ::close(fd);
    return absl::ResourceExhaustedError("no memory for a memory file");
  }
  // Descriptors are assigned from the lowest free number on, so all below it are in use.
  if (static_cast<rlim_t>(fd) + left >= most) return TooManyDescriptors(left);
  if (bytes > size_t{INT64_MAX}) return absl::ResourceExhaustedError(absl::StrCat("no file has ", bytes, " bytes"));
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("create a memory file of ", bytes, " bytes"));
  }
  return file;
}

absl::Status Seal(int fd, SealedAgainst against) {
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (against == SealedAgainst::kResizingAndFutureWriting) seals |= F_SEAL_FUTURE_WRITE;
  return ::fcntl(fd, F_ADD_SEALS, seals) == 0 ? absl::OkStatus() : SystemError("seal a memory file");
}

absl::Status CheckCannotShrink(int fd, size_t bytes) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return SystemError("inspect a memory file");
  const int seals = S_ISREG(status.st_mode) ? ::fcntl(fd, F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("a file to be mapped must be a memory file that is sealed against shrinking");
  }
  if (static_cast<uint64_t>(status.st_size) >= bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a memory file has ", status.st_size, " bytes; it must have at least ", bytes));
}

}  // namespace tdock::dock
