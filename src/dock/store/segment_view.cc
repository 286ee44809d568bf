#include "dock/store/segment_view.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

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

}  // namespace

absl::Status SegmentMap::Add(uint64_t segment, int fd, size_t bytes) {
  if (Has(segment)) return absl::OkStatus();
  const auto what = [segment] { return absl::StrCat("segment ", segment); };
  if (absl::Status status = CheckCannotShrink(fd, bytes); !status.ok()) return Annotate(status, what());
  absl::StatusOr<std::shared_ptr<const Mapping>> mapping = Mapping::Make(fd, bytes, Mapping::Access::kRead);
  if (!mapping.ok()) return Annotate(mapping.status(), what());
  MutexLock lock(mu_);
  // Another thread may have been faster; then `mapping` is released after the lock.
  mappings_.try_emplace(segment, *mapping);
  return absl::OkStatus();
}

absl::StatusOr<Buffer> SegmentMap::Look(uint64_t segment, uint64_t offset, uint64_t bytes) const {
  std::shared_ptr<const Mapping> mapping;
  {
    MutexLock lock(mu_);
    const auto found = mappings_.find(segment);
    if (found == mappings_.end()) return absl::NotFoundError(absl::StrCat("segment ", segment, " is not mapped"));
    mapping = found->second;
  }
  if (offset > mapping->size() || bytes > mapping->size() - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes at ", offset, " of segment ", segment, ", which has ", mapping->size()));
  }
  const std::byte* const data = mapping->data() + offset;
  return Buffer::Wrap(data, bytes, std::move(mapping));
}

bool SegmentMap::Has(uint64_t segment) const {
  MutexLock lock(mu_);
  return mappings_.contains(segment);
}

void SegmentMap::Forget(uint64_t segment) {
  std::shared_ptr<const Mapping> forgotten;  // unmapped without the lock
  MutexLock lock(mu_);
  const auto found = mappings_.find(segment);
  if (found == mappings_.end()) return;
  forgotten = std::move(found->second);
  mappings_.erase(found);
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
