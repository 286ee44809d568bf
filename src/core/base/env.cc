#include "core/base/env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

constexpr absl::string_view kWriting = ".writing-";

namespace fs = std::filesystem;

absl::Status FileError(int error, absl::string_view doing, const std::string& path) {
  const std::string message = absl::StrCat("cannot ", doing, " ", EscapeUnprintable(path), ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EINVAL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A path with a zero byte in it would name another file.
int OpenPath(const std::string& path, int flags, mode_t mode = 0) {
  if (path.find('\0') == std::string::npos) return ::open(path.c_str(), flags, mode);
  errno = EINVAL;
  return -1;
}

// Makes what is in the folder of `path` survive a power failure, as far as names go.
absl::Status SyncFolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  FileDescriptor fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return FileError(errno, "sync the folder of", path);
  return absl::OkStatus();
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd, bool name_synced)
      : path_(std::move(path)), fd_(fd), name_synced_(name_synced) {}

  absl::Status Append(absl::string_view data) override {
    while (!data.empty()) {
      const ssize_t written = ::write(fd_.get(), data.data(), data.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        return FileError(errno, "write to", path_);
      }
      data.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fsync(fd_.get()) != 0) return FileError(errno, "sync", path_);
    if (!name_synced_) TDOCK_RETURN_IF_ERROR(SyncFolderOf(path_));
    name_synced_ = true;
    return absl::OkStatus();
  }

  absl::Status Close() override {
    if (::close(fd_.release()) != 0) return FileError(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  FileDescriptor fd_;
  bool name_synced_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* data, size_t size) : data_(data), size_(size) {}
  ~PosixMappedFile() override {
    if (size_ > 0) ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const override { return {static_cast<const std::byte*>(data_), size_}; }

  void Release(std::span<const std::byte> bytes) const override {
    // Whole pages only: the first and the last may contain bytes outside the range.
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

 private:
  void* const data_;
  const size_t size_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::Status ReadAt(uint64_t offset, std::span<char> into) override {
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError(errno, "read", path_);
      if (got == 0)
        return absl::OutOfRangeError(
            absl::StrCat("cannot read ", EscapeUnprintable(path_), ": it ends at byte ", offset));
      into = into.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  FileDescriptor fd_;
  const uint64_t size_;
};

absl::StatusOr<size_t> RegularSize(const FileDescriptor& fd, const std::string& path) {
  if (fd.get() < 0) return FileError(errno, "open", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FileError(errno, "inspect", path);
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), " is not a regular file"));
  return static_cast<size_t>(info.st_size);
}

class PosixEnv final : public Env {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    FileDescriptor fd(OpenPath(path, O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) return FileError(errno, "open", path);
    std::string contents;
    char chunk[1 << 16];
    for (;;) {
      const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError(errno, "read", path);
      if (got == 0) return contents;
      contents.append(chunk, static_cast<size_t>(got));
    }
  }

  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override {
    FileDescriptor fd(OpenPath(path, O_RDONLY | O_CLOEXEC));
    TDOCK_ASSIGN_OR_RETURN(const size_t size, RegularSize(fd, path));
    if (size == 0) return std::make_unique<PosixMappedFile>(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return FileError(errno, "map", path);
    return std::make_unique<PosixMappedFile>(data, size);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) override {
    // If it is a pipe, does not wait for a writer.
    FileDescriptor fd(OpenPath(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    TDOCK_ASSIGN_OR_RETURN(const size_t size, RegularSize(fd, path));
    return std::make_unique<PosixReadableFile>(path, fd.release(), size);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override {
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == WriteMode::kAppend ? O_APPEND : O_TRUNC);
    const int fd = OpenPath(path, flags, 0644);
    if (fd < 0) return FileError(errno, "open for writing", path);
    // A file that is written anew is about to be renamed, which syncs its name; or it may be lost.
    return std::make_unique<PosixWritableFile>(path, fd, /*name_synced=*/mode != WriteMode::kAppend);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return FileError(errno, "rename to", to);
    return SyncFolderOf(to);
  }

  absl::Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return FileError(errno, "remove", path);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return FileError(error.value(), "remove", path);
    return absl::OkStatus();
  }

  absl::Status CreateFolders(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return FileError(error.value(), "create the folder", path);
    return absl::OkStatus();
  }

  absl::Status CreateNewFolder(const std::string& path) override {
    if (::mkdir(path.c_str(), 0755) != 0) return FileError(errno, "create the folder", path);
    return absl::OkStatus();
  }

  bool Exists(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return FileError(error.value(), "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }
};

absl::Status WriteAndSync(Env& env, const std::string& path, const std::function<absl::Status(WritableFile&)>& write) {
  TDOCK_ASSIGN_OR_RETURN(auto file, env.OpenForWriting(path, WriteMode::kTruncate));
  TDOCK_RETURN_IF_ERROR(write(*file));
  TDOCK_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

Env& Env::Real() {
  static PosixEnv* env = new PosixEnv;
  return *env;
}

absl::StatusOr<std::string> ReadFileUpTo(Env& env, const std::string& path, uint64_t max_bytes) {
  TDOCK_ASSIGN_OR_RETURN(const auto file, env.OpenForReading(path));
  if (file->size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": the file has ", file->size(),
                                                   " bytes; at most ", max_bytes, " are read"));
  }
  std::string contents(file->size(), '\0');
  TDOCK_RETURN_IF_ERROR(file->ReadAt(0, contents));
  return contents;
}

absl::Status WriteFileAtomically(Env& env, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write) {
  // Other hosts and containers may share the folder, and have processes with the same ids.
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  const std::string aside = absl::StrCat(path, kWriting, absl::Hex(number, absl::kZeroPad16));
  absl::Status status = WriteAndSync(env, aside, write);
  if (status.ok()) status = env.Rename(aside, path);
  if (!status.ok() && env.Exists(aside)) env.Remove(aside).IgnoreError();
  return status;
}

absl::Status WriteFileAtomically(Env& env, const std::string& path, std::span<const absl::string_view> pieces) {
  return WriteFileAtomically(env, path, [&](WritableFile& file) -> absl::Status {
    for (absl::string_view piece : pieces) TDOCK_RETURN_IF_ERROR(file.Append(piece));
    return absl::OkStatus();
  });
}

absl::Status WriteFileAtomically(Env& env, const std::string& path, absl::string_view contents) {
  return WriteFileAtomically(env, path, std::span(&contents, 1));
}

bool IsHalfWritten(absl::string_view name) {
  const size_t at = name.rfind(kWriting);
  if (at == absl::string_view::npos) return false;
  const absl::string_view digits = name.substr(at + kWriting.size());
  return digits.size() == 16 &&
         std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", name);
}

}  // namespace tdock
