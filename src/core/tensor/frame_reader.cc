#include "core/tensor/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/bulk_copy.h"

namespace tdock {
namespace {

// What is copied stays in a core's cache until it is checksummed.
constexpr size_t kCachedBytes = size_t{128} << 10;

std::span<const std::byte> TakeFront(std::span<const std::byte>& bytes, uint64_t most) {
  const auto front = bytes.first(static_cast<size_t>(std::min<uint64_t>(bytes.size(), most)));
  bytes = bytes.subspan(front.size());
  return front;
}

}  // namespace

FrameReader::FrameReader(const FrameLimits& limits, std::function<Buffer(size_t)> allocate)
    : limits_(limits), allocate_(std::move(allocate)) {}

uint64_t FrameReader::missing() const { return (prelude_ ? prelude_->frame_bytes : kFramePreludeBytes) - fed_; }

bool FrameReader::WouldComplete(std::span<const std::byte> bytes, uint64_t header_bytes, uint64_t frame_bytes) const {
  std::optional<FramePrelude> prelude = prelude_;
  if (!prelude) {
    // Nobody cuts the first bytes who does not want to be a nuisance.
    if (fed_ != 0 || bytes.size() < kFramePreludeBytes) return bytes.size() >= header_bytes;
    const absl::StatusOr<FramePrelude> read = ReadFramePrelude(bytes, limits_);
    if (!read.ok()) return false;
    prelude = *read;
  }
  const uint64_t end = fed_ + bytes.size();
  const bool header = !header_ && prelude->header_bytes >= header_bytes && end >= prelude->header_bytes;
  return header || (prelude->frame_bytes >= frame_bytes && end >= prelude->frame_bytes);
}

absl::Status FrameReader::Feed(std::span<const std::byte> bytes) {
  while (status_.ok() && !bytes.empty()) {
    if (prelude_ && fed_ == prelude_->frame_bytes) {
      status_ = WrongFrameSize(prelude_->frame_bytes, fed_ + bytes.size());
    } else {
      status_ = header_ ? TakeBlocks(bytes) : TakeHeader(bytes);
    }
  }
  if (!status_.ok()) buffers_.clear();
  return status_;
}

absl::Status FrameReader::TakeHeader(std::span<const std::byte>& bytes) {
  const auto front = TakeFront(bytes, (prelude_ ? prelude_->header_bytes : kFramePreludeBytes) - fed_);
  header_bytes_.append(reinterpret_cast<const char*>(front.data()), front.size());
  fed_ += front.size();
  const auto read = std::as_bytes(std::span(header_bytes_));
  if (!prelude_) {
    TDOCK_RETURN_IF_ERROR(CheckFrameStart(read));
    if (fed_ < kFramePreludeBytes) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(prelude_, ReadFramePrelude(read, limits_));
  } else if (fed_ == prelude_->header_bytes) {
    TDOCK_ASSIGN_OR_RETURN(header_, ReadFrameHeader(read, *prelude_, limits_));
    std::string().swap(header_bytes_);
    // The blocks may begin, or all be empty, right here.
    return TakeBlocks(bytes);
  }
  return absl::OkStatus();
}

absl::Status FrameReader::TakeBlocks(std::span<const std::byte>& bytes) {
  for (;;) {
    const bool open = buffers_.size() > closed_;
    if (!all_closed() && !open && fed_ == block().begin) TDOCK_RETURN_IF_ERROR(OpenBlock());
    if (!all_closed() && fed_ == block().end()) {
      TDOCK_RETURN_IF_ERROR(CloseBlock());
      continue;
    }
    const uint64_t zeros_end = all_closed() ? prelude_->frame_bytes : block().begin;
    if (bytes.empty() || fed_ == prelude_->frame_bytes) return absl::OkStatus();
    if (fed_ < zeros_end) {
      TDOCK_RETURN_IF_ERROR(TakeZeros(bytes, zeros_end));
    } else {
      TakeValues(bytes);
    }
  }
}

absl::Status FrameReader::TakeZeros(std::span<const std::byte>& bytes, uint64_t end) {
  const auto zeros = TakeFront(bytes, end - fed_);
  TDOCK_RETURN_IF_ERROR(header_->CheckZeros(zeros, fed_, closed_ == 0 ? nullptr : &header_->blocks[closed_ - 1]));
  fed_ += zeros.size();
  return absl::OkStatus();
}

void FrameReader::TakeValues(std::span<const std::byte>& bytes) {
  std::byte* to = buffers_.back().mutable_data() + (fed_ - block().begin);
  auto values = TakeFront(bytes, block().end() - fed_);
  fed_ += values.size();
  if (!prelude_->checked()) {
    BulkCopy(prelude_->frame_bytes)(to, values.data(), values.size());
    return;
  }
  while (!values.empty()) {
    const auto part = TakeFront(values, kCachedBytes);
    std::memcpy(to, part.data(), part.size());
    checksum_.Add({to, part.size()});
    to += part.size();
  }
}

absl::Status FrameReader::OpenBlock() {
  checksum_.Reset();
  if (block().bytes == 0) {
    buffers_.emplace_back();
    return absl::OkStatus();
  }
  try {
    buffers_.push_back(allocate_(block().bytes));
    return absl::OkStatus();
  } catch (const std::bad_alloc& error) {
    return NoMemory(absl::StrCat(block().bytes, " bytes of ", block().what, " of column '",
                                 EscapeForMessage(header_->columns[block().column].name), "'"),
                    error);
  }
}

absl::Status FrameReader::CloseBlock() {
  if (prelude_->checked()) {
    TDOCK_RETURN_IF_ERROR(header_->CheckBlock(block(), checksum_.Value()));
  }
  ++closed_;
  return absl::OkStatus();
}

absl::StatusOr<MetaBatch> FrameReader::Finish() {
  if (status_.ok() && !prelude_) status_ = FrameTooShort(fed_);
  if (status_.ok() && !done()) status_ = WrongFrameSize(prelude_->frame_bytes, fed_);
  if (!status_.ok()) return status_;
  status_ = absl::FailedPreconditionError("the batch of this frame was taken from its reader already");
  return std::move(*header_).MakeBatch(std::move(buffers_));
}

}  // namespace tdock
