#include "core/net/inbox.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::net {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// More memory than this is not kept for later messages.
constexpr size_t kKeepBytes = 1 << 20;
// The header of a data message, with its checksum.
constexpr size_t kDataHeaderBytes = sizeof(MessageHeader) + sizeof(DataPrefix);

// Memory that each thread that reads has once.
std::span<char> Scratch() {
  thread_local const std::unique_ptr<char[]> memory(new char[kReadBytes]);
  return {memory.get(), kReadBytes};
}

}  // namespace

absl::StatusOr<Inbox::Arrived> Inbox::Read(Stream& stream) {
  if (data_left_ > 0 && !recipient_->IsReadyFor(data_tag_)) return Arrived::kMustWait;
  if (data_left_ > 0 && begin_ == in_.size()) {
    rooms_.clear();
    recipient_->RoomsFor(data_tag_, data_offset_, data_left_, rooms_);
    if (!rooms_.empty()) return ReadToRooms(stream);
  }
  const std::span<char> scratch = Scratch();
  const iovec into{scratch.data(), scratch.size()};
  TDOCK_ASSIGN_OR_RETURN(const size_t got, stream.Read({&into, 1}));
  in_.append(scratch.data(), got);
  if (got == 0) return Arrived::kNothing;
  return got < scratch.size() ? Arrived::kAll : Arrived::kPerhapsMore;
}

absl::StatusOr<Inbox::Arrived> Inbox::ReadToRooms(Stream& stream) {
  uint64_t room = 0;
  for (const iovec& each : rooms_) room += each.iov_len;
  // Behind them, the next header, so that the data after it also goes straight to its place.
  std::array<char, kDataHeaderBytes> next;
  const bool to_the_end = room >= data_left_;
  if (to_the_end) rooms_.push_back({next.data(), next.size()});
  const uint64_t asked = room + (to_the_end ? next.size() : 0);
  TDOCK_ASSIGN_OR_RETURN(const size_t got, stream.Read(rooms_));
  if (got == 0) return Arrived::kNothing;
  const size_t filled = std::min<uint64_t>(got, std::min(room, data_left_));
  if (checksum_ != 0) {
    size_t left = filled;
    for (const iovec& each : rooms_) {
      const size_t step = std::min(left, each.iov_len);
      running_->Add({static_cast<const std::byte*>(each.iov_base), step});
      left -= step;
    }
  }
  data_left_ -= filled;
  if (data_left_ == 0) TDOCK_RETURN_IF_ERROR(EndData());
  data_offset_ += filled;
  TDOCK_RETURN_IF_ERROR(recipient_->OnFilled(data_tag_, data_offset_ - filled, filled));
  in_.append(next.data(), got - filled);
  return got < asked ? Arrived::kAll : Arrived::kPerhapsMore;
}

absl::Status Inbox::BeginData(const MessageHeader& header) {
  if (header.length < sizeof(DataPrefix)) return absl::InvalidArgumentError("a data message without its prefix");
  const auto prefix = NumberAt<DataPrefix>(in_, begin_ + sizeof(header));
  begin_ += kDataHeaderBytes;
  data_left_ = header.length - sizeof(DataPrefix);
  data_offset_ = prefix.offset;
  checksum_ = prefix.checksum;
  if (prefix.offset > UINT64_MAX - data_left_) return absl::InvalidArgumentError("data beyond any length");
  data_tag_ = header.tag;
  if (checksum_ != 0) {
    if (running_ == nullptr) running_ = std::make_unique<RunningChecksum>();
    BeginChecksum(data_offset_, *running_);
  }
  return data_left_ == 0 ? EndData() : absl::OkStatus();
}

absl::Status Inbox::TakeData() {
  const auto bytes = AsBytes(in_).subspan(begin_, std::min<uint64_t>(data_left_, in_.size() - begin_));
  if (bytes.empty()) return absl::OkStatus();
  begin_ += bytes.size();
  data_left_ -= bytes.size();
  if (checksum_ != 0) running_->Add(bytes);
  if (data_left_ == 0) TDOCK_RETURN_IF_ERROR(EndData());
  data_offset_ += bytes.size();
  return recipient_->OnData(data_tag_, data_offset_ - bytes.size(), bytes);
}

absl::Status Inbox::EndData() {
  if (checksum_ == 0 || running_->Value() == checksum_) return absl::OkStatus();
  // Over another connection it may arrive.
  return absl::UnavailableError(absl::StrCat("data of call ", data_tag_, " was damaged on the way"));
}

absl::StatusOr<std::optional<Inbox::Message>> Inbox::Next() {
  if (begin_ == in_.size()) {
    in_.clear();
    begin_ = 0;
    if (in_.capacity() > kKeepBytes) in_.shrink_to_fit();
  } else if (begin_ >= in_.size() - begin_) {
    in_.erase(0, begin_);
    begin_ = 0;
  }
  while (!paused_) {
    if (data_left_ > 0 && !recipient_->IsReadyFor(data_tag_)) break;
    if (data_left_ > 0) TDOCK_RETURN_IF_ERROR(TakeData());
    const size_t there = in_.size() - begin_;
    if (paused_ || data_left_ > 0 || there < sizeof(MessageHeader)) break;
    MessageHeader header;
    std::memcpy(&header, in_.data() + begin_, sizeof(header));
    const uint32_t most = header.type == kData ? kMaxDataBytes : recipient_->MaxBytes(header.type);
    if (header.length > most || (header.zero[0] | header.zero[1] | header.zero[2]) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a message of type ", static_cast<int>(header.type), " with ",
                                                     header.length, " bytes; the limit is ", most,
                                                     ": the other side is of another release, or something else"));
    }
    if (header.type == kData) {
      if (there < kDataHeaderBytes && header.length >= sizeof(DataPrefix)) break;
      TDOCK_RETURN_IF_ERROR(BeginData(header));
      continue;
    }
    const size_t all = sizeof(header) + header.length;
    if (there < all) {
      // Unwritten memory costs nothing, and received bytes are not copied repeatedly.
      if (all > kKeepBytes) in_.reserve(begin_ + all + kReadBytes);
      break;
    }
    const absl::string_view body(in_.data() + begin_ + sizeof(header), header.length);
    begin_ += all;
    return Message{header, body};
  }
  return std::nullopt;
}

}  // namespace tdock::net
