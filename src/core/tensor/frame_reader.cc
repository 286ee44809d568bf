#include "core/tensor/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/bulk_copy.h"
#include "core/tensor/checksum.h"

namespace tdock {

FrameReader::FrameReader(const FrameLimits& limits, std::function<Buffer(size_t)> allocate)
    : limits_(limits), allocate_(std::move(allocate)) {}

uint64_t FrameReader::missing() const {
  return (prelude_ ? prelude_->frame_bytes : kFramePreludeBytes) - in_header_ - received_.total();
}

bool FrameReader::WouldCompleteHeader(std::span<const std::byte> bytes, uint64_t header_bytes) const {
  if (header_) return false;
  std::optional<FramePrelude> prelude = prelude_;
  if (!prelude) {
    // Nobody cuts the first bytes who does not want to be a nuisance.
    if (in_header_ != 0 || bytes.size() < kFramePreludeBytes) return bytes.size() >= header_bytes;
    const absl::StatusOr<FramePrelude> read = ReadFramePrelude(bytes, limits_);
    if (!read.ok()) return false;
    prelude = *read;
  }
  return prelude->header_bytes >= header_bytes && in_header_ + bytes.size() >= prelude->header_bytes;
}

absl::Status FrameReader::Feed(std::span<const std::byte> bytes) {
  const uint64_t offset = next_;
  next_ += bytes.size();
  return Place(offset, bytes);
}

absl::Status FrameReader::Place(uint64_t offset, std::span<const std::byte> bytes) {
  while (status_.ok() && !bytes.empty()) {
    if (!header_) {
      if (offset != in_header_) {
        status_ = absl::InvalidArgumentError(absl::StrCat("byte ", offset, " of a frame whose header ends later"));
        break;
      }
      const size_t before = bytes.size();
      status_ = TakeHeader(bytes);
      offset += before - bytes.size();
      continue;
    }
    if (bytes.size() > prelude_->frame_bytes - std::min(offset, prelude_->frame_bytes)) {
      status_ = WrongFrameSize(prelude_->frame_bytes, offset + bytes.size());
      break;
    }
    rooms_.clear();
    RoomsFor(offset, bytes.size(), rooms_);
    const BulkCopy copy(prelude_->frame_bytes);
    size_t filled = 0;
    for (const iovec& room : rooms_) {
      copy(static_cast<std::byte*>(room.iov_base), bytes.data() + filled, room.iov_len);
      filled += room.iov_len;
    }
    Filled(offset, filled).IgnoreError();
    offset += filled;
    bytes = bytes.subspan(filled);
  }
  if (!status_.ok()) buffers_.clear();
  return status_;
}

absl::Status FrameReader::TakeHeader(std::span<const std::byte>& bytes) {
  const uint64_t wanted = (prelude_ ? prelude_->header_bytes : kFramePreludeBytes) - in_header_;
  const auto front = bytes.first(static_cast<size_t>(std::min<uint64_t>(bytes.size(), wanted)));
  bytes = bytes.subspan(front.size());
  header_bytes_.append(reinterpret_cast<const char*>(front.data()), front.size());
  in_header_ += front.size();
  const auto read = std::as_bytes(std::span(header_bytes_));
  if (!prelude_) {
    TDOCK_RETURN_IF_ERROR(CheckFrameStart(read));
    if (in_header_ < kFramePreludeBytes) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(prelude_, ReadFramePrelude(read, limits_));
  } else if (in_header_ == prelude_->header_bytes) {
    TDOCK_ASSIGN_OR_RETURN(header_, ReadFrameHeader(read, *prelude_, limits_));
    std::string().swap(header_bytes_);
    buffers_.resize(header_->blocks.size());
  }
  return absl::OkStatus();
}

size_t FrameReader::BlockAt(uint64_t offset) const {
  const auto& blocks = header_->blocks;
  return static_cast<size_t>(
      std::partition_point(blocks.begin(), blocks.end(), [&](const auto& block) { return block.end() <= offset; }) -
      blocks.begin());
}

void FrameReader::RoomsFor(uint64_t offset, uint64_t most, std::vector<iovec>& rooms) {
  if (!status_.ok() || !header_ || offset >= prelude_->frame_bytes) return;
  const uint64_t end = offset + std::min(most, prelude_->frame_bytes - offset);
  bool has_gap = false;
  for (size_t i = BlockAt(offset); offset < end && rooms.size() < kMaxRooms;) {
    const uint64_t begin = i == buffers_.size() ? prelude_->frame_bytes : header_->blocks[i].begin;
    if (offset < begin) {
      // One gap: Filled() looks at its bytes.
      const uint64_t size = std::min({begin - offset, end - offset, uint64_t{zeros_.size()}});
      if (std::exchange(has_gap, true)) return;
      rooms.push_back({zeros_.data(), size});
      offset += size;
      continue;
    }
    const FrameBlock& block = header_->blocks[i];
    if (block.bytes > 0) {
      if (buffers_[i].size() == 0) status_ = Open(i);
      if (!status_.ok()) return;
      const uint64_t size = std::min(block.end(), end) - offset;
      rooms.push_back({buffers_[i].mutable_data() + (offset - begin), size});
      offset += size;
    }
    ++i;
  }
}

absl::Status FrameReader::Filled(uint64_t offset, uint64_t bytes) {
  if (status_.ok() && !received_.Add(offset, offset + bytes)) {
    status_ = absl::InvalidArgumentError(absl::StrCat("byte ", offset, " of a frame comes twice"));
  }
  const uint64_t end = offset + bytes;
  for (size_t i = BlockAt(offset); status_.ok() && offset < end; ++i) {
    const bool behind = i == buffers_.size();
    const uint64_t begin = behind ? prelude_->frame_bytes : header_->blocks[i].begin;
    if (offset < begin) {
      const uint64_t size = std::min({begin, end, offset + zeros_.size()}) - offset;
      status_ = header_->CheckZeros(std::span(zeros_).first(size), offset, i == 0 ? nullptr : &header_->blocks[i - 1]);
      offset += size;
    }
    if (behind) break;
    offset = std::max(offset, header_->blocks[i].end());
  }
  if (!status_.ok()) buffers_.clear();
  return status_;
}

absl::Status FrameReader::Open(size_t i) {
  const FrameBlock& block = header_->blocks[i];
  try {
    buffers_[i] = allocate_(block.bytes);
    return absl::OkStatus();
  } catch (const std::bad_alloc& error) {
    return NoMemory(absl::StrCat(block.bytes, " bytes of ", block.what, " of column '",
                                 EscapeForMessage(header_->columns[block.column].name), "'"),
                    error);
  }
}

absl::StatusOr<MetaBatch> FrameReader::Finish() {
  if (status_.ok() && !prelude_) status_ = FrameTooShort(in_header_);
  if (status_.ok() && !done()) status_ = WrongFrameSize(prelude_->frame_bytes, prelude_->frame_bytes - missing());
  for (size_t i = 0; status_.ok() && prelude_->checked() && i < buffers_.size(); ++i) {
    status_ = header_->CheckBlock(header_->blocks[i], Checksum({buffers_[i].data(), buffers_[i].size()}));
  }
  if (!status_.ok()) return status_;
  status_ = absl::FailedPreconditionError("the batch of this frame was taken from its reader already");
  return std::move(*header_).MakeBatch(std::move(buffers_));
}

}  // namespace tdock
