#include "runtime/control/parcel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tdock/frame.h"

namespace tdock::runtime {
namespace {

constexpr size_t kAlignment = EncodedFrame::kAlignment;
constexpr size_t kFixedBytes = 16;  // the length of the parcel and the number of frames

size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

Buffer OwnText(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return Buffer::Wrap(owner->data(), owner->size(), owner);
}

// Adds the parts of a frame, which end where the next one may begin; returns their size.
size_t AddFrame(EncodedFrame frame, std::vector<Buffer>& pieces) {
  static const std::string kZeros(kAlignment, '\0');
  size_t size = frame.header.size();
  pieces.push_back(OwnText(std::move(frame.header)));
  for (Buffer& block : frame.blocks) {
    const size_t whole = RoundUp(block.size()), rest = whole - block.size();
    size += whole;
    pieces.push_back(std::move(block));
    if (rest > 0) pieces.push_back(Buffer::Wrap(kZeros.data(), rest, nullptr));
  }
  return size;
}

template <class T>
T ReadAt(const Buffer& bytes, size_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

}  // namespace

int64_t Parcel::Integer(const std::string& name) const {
  const auto found = facts.find(name);
  const int64_t* const value = found == facts.end() ? nullptr : found->second.As<int64_t>();
  return value == nullptr ? 0 : *value;
}

std::string Parcel::Text(const std::string& name) const {
  const auto found = facts.find(name);
  const std::string* const value = found == facts.end() ? nullptr : found->second.As<std::string>();
  return value == nullptr ? std::string() : *value;
}

absl::StatusOr<std::vector<rpc::Message>> ToMessages(const Parcel& parcel, const ParcelLimits& limits) {
  if (parcel.batches.size() + 1 > limits.max_frames) {
    return absl::InvalidArgumentError(absl::StrCat("a message with ", parcel.batches.size(), " batches; the limit is ",
                                                   limits.max_frames - 1, ": concatenate them"));
  }
  std::vector<Buffer> pieces(1);  // the first is the header, which is made last
  std::vector<uint64_t> lengths;
  TDOCK_ASSIGN_OR_RETURN(EncodedFrame facts, EncodeFrame(MetaBatch(Batch(), parcel.facts)));
  lengths.push_back(AddFrame(std::move(facts), pieces));
  for (const MetaBatch& batch : parcel.batches) {
    TDOCK_ASSIGN_OR_RETURN(EncodedFrame frame, EncodeFrame(batch));
    lengths.push_back(AddFrame(std::move(frame), pieces));
  }
  const size_t header_bytes = RoundUp(kFixedBytes + lengths.size() * sizeof(uint64_t));
  uint64_t total = header_bytes;
  for (const uint64_t length : lengths) total += length;
  if (total > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", total, " bytes; the limit is ", limits.max_bytes,
                                                   ": pass rows by their ids, and fetch them from the dock"));
  }
  std::string header(header_bytes, '\0');
  const auto count = static_cast<uint32_t>(lengths.size());
  std::memcpy(header.data(), &total, sizeof(total));
  std::memcpy(header.data() + sizeof(total), &count, sizeof(count));
  std::memcpy(header.data() + kFixedBytes, lengths.data(), lengths.size() * sizeof(uint64_t));
  pieces.front() = OwnText(std::move(header));
  return rpc::CutMessages(pieces);
}

absl::StatusOr<std::optional<Parcel>> ParcelReader::Feed(rpc::Pieces message) {
  for (const std::span<const std::byte> piece : message) {
    if (piece.empty()) continue;  // it may have no address, which memcpy does not allow
    if (bytes_.size() - used_ < piece.size()) {
      Buffer larger = Buffer::Allocate(std::bit_ceil(std::max<size_t>(used_ + piece.size(), 4096)));
      if (used_ > 0) std::memcpy(larger.mutable_data(), bytes_.data(), used_);
      bytes_ = std::move(larger);
    }
    std::memcpy(bytes_.mutable_data() + used_, piece.data(), piece.size());
    used_ += piece.size();
    if (want_ == 0 && used_ >= sizeof(want_)) {
      want_ = ReadAt<uint64_t>(bytes_, 0);
      if (want_ < kFixedBytes || want_ > limits_.max_bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("a message that says to have ", want_, " bytes; the limit is ", limits_.max_bytes));
      }
    }
    if (want_ > 0 && used_ > want_) {
      return absl::InvalidArgumentError(absl::StrCat("bytes behind the end of a message, at ", want_));
    }
  }
  if (want_ == 0 || used_ < want_) return std::nullopt;
  return Finish();
}

absl::StatusOr<std::optional<Parcel>> ParcelReader::Finish() {
  const Buffer bytes = std::exchange(bytes_, Buffer());
  const uint64_t size = std::exchange(want_, 0);
  used_ = 0;
  const auto frames = ReadAt<uint32_t>(bytes, sizeof(uint64_t));
  if (frames < 1 || frames > limits_.max_frames) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", frames, " frames; 1 to ", limits_.max_frames, " are possible"));
  }
  uint64_t at = RoundUp(kFixedBytes + frames * sizeof(uint64_t));
  if (at > size) return absl::InvalidArgumentError("a message that ends in its header");
  Parcel parcel;
  for (uint32_t i = 0; i < frames; ++i) {
    const auto length = ReadAt<uint64_t>(bytes, kFixedBytes + i * sizeof(uint64_t));
    if (length > size - at || length % kAlignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame ", i, " says to have ", length, " bytes, of ", size - at, " that are left"));
    }
    TDOCK_ASSIGN_OR_RETURN(MetaBatch batch,
                           DecodeFrame(bytes.Slice(at, length), {.max_frame_bytes = limits_.max_bytes}));
    at += length;
    if (i > 0) {
      parcel.batches.push_back(std::move(batch));
    } else if (batch.columns().empty()) {
      parcel.facts = batch.meta();
    } else {
      return absl::InvalidArgumentError("the first frame of a message has columns");
    }
  }
  if (at != size) return absl::InvalidArgumentError("bytes behind the last frame of a message");
  return parcel;
}

}  // namespace tdock::runtime
