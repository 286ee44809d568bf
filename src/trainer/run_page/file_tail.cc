#include "trainer/run_page/file_tail.h"

#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "absl/status/status.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

constexpr size_t kMostLineBytes = size_t{16} << 20;

}  // namespace

void FileTail::Restart() {
  file_ = nullptr;
  offset_ = size_ = 0;
  partial_.clear();
  skipping_ = false;
}

absl::StatusOr<FileTail::News> FileTail::Read(size_t most_bytes) {
  struct stat before {
  }, after{};
  const bool is_there = ::stat(path_.c_str(), &before) == 0;
  const bool same = is_there && file_ != nullptr && before.st_ino == number_ && before.st_dev == device_;
  if (file_ != nullptr && (!same || static_cast<uint64_t>(before.st_size) < offset_)) {
    Restart();
    return News{.restarted = true};
  }
  if (!is_there || (same && static_cast<uint64_t>(before.st_size) == offset_)) return News{};
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = env_.OpenForReading(path_);
  if (absl::IsNotFound(file.status())) return News{};
  TDOCK_RETURN_IF_ERROR(file.status());
  // Replaced between the two: the next call sees one file.
  if (::stat(path_.c_str(), &after) != 0 || after.st_ino != before.st_ino || after.st_dev != before.st_dev)
    return News{};
  file_ = *std::move(file);
  number_ = after.st_ino;
  device_ = after.st_dev;
  size_ = file_->size();
  if (size_ <= offset_) return News{};
  std::string bytes(std::min<uint64_t>(size_ - offset_, most_bytes), '\0');
  const absl::Status read = file_->ReadAt(offset_, std::span(bytes));
  if (absl::IsOutOfRange(read)) return News{};  // shortened at this moment
  TDOCK_RETURN_IF_ERROR(read);
  offset_ += bytes.size();
  News news{.more = offset_ < size_};
  TakeLines(std::move(bytes), news);
  return news;
}

void FileTail::TakeLines(std::string bytes, News& news) {
  if (skipping_) {
    const size_t end = bytes.find('\n');
    if (end == std::string::npos) return;
    bytes.erase(0, end + 1);
    skipping_ = false;
  }
  const size_t last = bytes.rfind('\n');
  if (last == std::string::npos) {
    partial_ += bytes;
    if (partial_.size() <= kMostLineBytes) return;
    partial_.clear();
    skipping_ = true;
    ++news.too_long;
    return;
  }
  news.lines = std::move(partial_);
  news.lines.append(bytes, 0, last + 1);
  partial_.assign(bytes, last + 1);
}

}  // namespace tdock::trainer
