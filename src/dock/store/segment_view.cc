#include "dock/store/segment_view.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/store/page_sizes.h"

namespace tdock::dock {
namespace {

constexpr uint64_t kMostUploadBytes = uint64_t{1} << 48;

absl::StatusOr<uint64_t> UploadBytes(uint64_t slots, uint64_t slot_bytes) {
  if (slots == 0 || slot_bytes == 0 || slots > kMostUploadBytes / slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("an upload area of ", slots, " slots of ", slot_bytes,
                                                   " bytes; it must have 1 to ", kMostUploadBytes, " bytes in all"));
  }
  return slots * slot_bytes;
}

size_t RoundUpToHugePages(size_t bytes) { return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; }

// Descriptors are assigned from the lowest free number on: the other half is for what the program opens.
bool MayKeepOpen(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 2;
}

}  // namespace

absl::Status SegmentMap::Add(uint64_t segment, const std::shared_ptr<const FileDescriptor>& file, size_t bytes) {
  if (Has(segment)) return absl::OkStatus();
  const auto what = [segment] { return absl::StrCat("segment ", segment); };
  if (absl::Status status = CheckCannotShrink(file->fd(), bytes); !status.ok()) return Annotate(status, what());
  absl::StatusOr<std::shared_ptr<const Mapping>> mapping = Mapping::Make(file->fd(), bytes, Mapping::Access::kRead);
  if (!mapping.ok()) return Annotate(mapping.status(), what());
  const Segment added{*mapping, MayKeepOpen(file->fd()) ? file : nullptr};
  MutexLock lock(mu_);
  // Another thread may have been faster; then `added` is released after the lock.
  segments_.try_emplace(segment, added);
  return absl::OkStatus();
}

absl::StatusOr<Buffer> SegmentMap::Look(uint64_t segment, uint64_t offset, uint64_t bytes) const {
  std::shared_ptr<const Mapping> mapping;
  {
    MutexLock lock(mu_);
    const auto found = segments_.find(segment);
    if (found == segments_.end()) return absl::NotFoundError(absl::StrCat("segment ", segment, " is not mapped"));
    mapping = found->second.mapping;
  }
  if (offset > mapping->size() || bytes > mapping->size() - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes at ", offset, " of segment ", segment, ", which has ", mapping->size()));
  }
  const std::byte* const data = mapping->data() + offset;
  return Buffer::Wrap(data, bytes, std::move(mapping));
}

SegmentMap::Segment SegmentMap::Find(const std::byte* data) const {
  MutexLock lock(mu_);
  for (const auto& [number, segment] : segments_) {
    const std::byte* const begin = segment.mapping->data();
    if (!std::less<>()(data, begin) && std::less<>()(data, begin + segment.mapping->size())) return segment;
  }
  return {};
}

Buffer SegmentMap::LookPrivately(std::span<const std::byte> bytes) const {
  const Segment segment = Find(bytes.data());
  if (segment.file == nullptr) return Buffer();
  const auto begin = static_cast<size_t>(bytes.data() - segment.mapping->data());
  if (bytes.size() > segment.mapping->size() - begin) return Buffer();
  // Whole huge pages, so that they are mapped as such.
  const size_t first = begin / kHugePageBytes * kHugePageBytes;
  const size_t end = std::min(segment.mapping->size(), RoundUpToHugePages(begin + bytes.size()));
  const absl::StatusOr<std::shared_ptr<const Mapping>> mapping =
      Mapping::Make(segment.file->fd(), end - first, Mapping::Access::kPrivate, first);
  if (!mapping.ok()) return Buffer();
  std::byte* const data = (*mapping)->writable() + (begin - first);
  // All at once, which takes half as long as page faults. Only advice: systems before Linux 5.14 do not know it.
  std::byte* const page = data - begin % kPageBytes;
  ::madvise(page, static_cast<size_t>(data - page) + bytes.size(), MADV_POPULATE_READ);
  return Buffer::WrapWritable(data, bytes.size(), std::const_pointer_cast<Mapping>(*mapping));
}

bool SegmentMap::Has(uint64_t segment) const {
  MutexLock lock(mu_);
  return segments_.contains(segment);
}

void SegmentMap::Forget(uint64_t segment) {
  Segment forgotten;  // unmapped without the lock
  MutexLock lock(mu_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return;
  forgotten = std::move(found->second);
  segments_.erase(found);
}

UploadArea::UploadArea(uint64_t slots, uint64_t slot_bytes, std::shared_ptr<const FileDescriptor> file,
                       std::shared_ptr<const Mapping> mapping)
    : slots_(slots), slot_bytes_(slot_bytes), file_(std::move(file)), mapping_(std::move(mapping)) {}

absl::StatusOr<UploadArea> UploadArea::Make(uint64_t slots, uint64_t slot_bytes) {
  TDOCK_ASSIGN_OR_RETURN(const uint64_t bytes, UploadBytes(slots, slot_bytes));
  TDOCK_ASSIGN_OR_RETURN(auto file, MakeMemoryFile("tdock-upload", bytes));
  TDOCK_RETURN_IF_ERROR(Seal(file->fd(), SealedAgainst::kResizing));
  TDOCK_ASSIGN_OR_RETURN(auto mapping, Mapping::Make(file->fd(), bytes, Mapping::Access::kReadWrite));
  return UploadArea(slots, slot_bytes, std::move(file), std::move(mapping));
}

absl::StatusOr<UploadArea> UploadArea::Map(int fd, uint64_t slots, uint64_t slot_bytes) {
  TDOCK_ASSIGN_OR_RETURN(const uint64_t bytes, UploadBytes(slots, slot_bytes));
  if (absl::Status status = CheckCannotShrink(fd, bytes); !status.ok()) return Annotate(status, "the upload area");
  TDOCK_ASSIGN_OR_RETURN(auto mapping, Mapping::Make(fd, bytes, Mapping::Access::kReadWrite));
  return UploadArea(slots, slot_bytes, nullptr, std::move(mapping));
}

absl::StatusOr<std::span<std::byte>> UploadArea::Slot(uint64_t slot, uint64_t bytes) const {
  if (slot >= slots_ || bytes > slot_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes of slot ", slot, " of an upload area of ", slots_,
                                                   " slots of ", slot_bytes_, " bytes"));
  }
  return std::span<std::byte>(mapping_->writable() + slot * slot_bytes_, bytes);
}

}  // namespace tdock::dock
