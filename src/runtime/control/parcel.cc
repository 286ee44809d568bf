#include "runtime/control/parcel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tdock/frame.h"

namespace tdock::runtime {
namespace {

constexpr size_t kAlignment = EncodedFrame::kAlignment;
constexpr size_t kFixedBytes = 16;  // the length of the parcel and the number of frames
constexpr size_t kFirstBytes = 1 << 20;

size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// The memory that the pieces of a parcel point to.
struct Owner {
  std::deque<std::string> headers = {};
  std::vector<Buffer> blocks = {};
};

// Adds the parts of a frame, which end where the next one may begin; returns their size.
size_t AddFrame(EncodedFrame frame, Owner& owner, std::vector<std::span<const std::byte>>& pieces) {
  static constexpr std::array<std::byte, kAlignment> kZeros{};
  size_t size = frame.header.size();
  owner.headers.push_back(std::move(frame.header));
  pieces.push_back(std::as_bytes(std::span(owner.headers.back())));
  for (Buffer& block : frame.blocks) {
    const size_t whole = RoundUp(block.size()), rest = whole - block.size();
    size += whole;
    pieces.push_back(block.bytes());
    owner.blocks.push_back(std::move(block));
    if (rest > 0) pieces.push_back(std::span(kZeros).first(rest));
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

absl::StatusOr<PackedParcel> Pack(const Parcel& parcel, const ParcelLimits& limits) {
  if (parcel.batches.size() + 1 > limits.max_frames) {
    return absl::InvalidArgumentError(absl::StrCat("a message with ", parcel.batches.size(), " batches; the limit is ",
                                                   limits.max_frames - 1, ": concatenate them"));
  }
  const auto owner = std::make_shared<Owner>();
  PackedParcel packed{.pieces = {{}}, .owner = owner};  // the first is the header, which is made last
  std::vector<uint64_t> lengths;
  const auto add = [&](const MetaBatch& batch) -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(EncodedFrame frame, EncodeFrame(batch, {}, FrameChecksums::kNone));
    lengths.push_back(AddFrame(std::move(frame), *owner, packed.pieces));
    return absl::OkStatus();
  };
  TDOCK_RETURN_IF_ERROR(add(MetaBatch(Batch(), parcel.facts)));
  for (const MetaBatch& batch : parcel.batches) TDOCK_RETURN_IF_ERROR(add(batch));
  const size_t header_bytes = RoundUp(kFixedBytes + lengths.size() * sizeof(uint64_t));
  const uint64_t total = std::accumulate(lengths.begin(), lengths.end(), uint64_t{header_bytes});
  if (total > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", total, " bytes; the limit is ", limits.max_bytes,
                                                   ": pass rows by their ids, and fetch them from the dock"));
  }
  std::string header(header_bytes, '\0');
  const auto count = static_cast<uint32_t>(lengths.size());
  std::memcpy(header.data(), &total, sizeof(total));
  std::memcpy(header.data() + sizeof(total), &count, sizeof(count));
  std::memcpy(header.data() + kFixedBytes, lengths.data(), lengths.size() * sizeof(uint64_t));
  owner->headers.push_back(std::move(header));
  packed.pieces.front() = std::as_bytes(std::span(owner->headers.back()));
  return packed;
}

std::span<std::byte> ParcelReader::Room(size_t most) {
  // Until the length is known, room for no more than the shortest parcel.
  const uint64_t end = want_ == 0 ? kFixedBytes : want_;
  if (used_ == bytes_.size()) {
    Buffer larger = Buffer::Allocate(std::min<uint64_t>(end, std::max<uint64_t>(2 * used_, kFirstBytes)));
    if (used_ > 0) std::memcpy(larger.mutable_data(), bytes_.data(), used_);
    bytes_ = std::move(larger);
  }
  return {bytes_.mutable_data() + used_, std::min(most, bytes_.size() - used_)};
}

absl::StatusOr<std::optional<Parcel>> ParcelReader::Fill(size_t bytes) {
  used_ += bytes;
  if (want_ == 0 && used_ == kFixedBytes) {
    want_ = ReadAt<uint64_t>(bytes_, 0);
    if (want_ <= kFixedBytes || want_ > limits_.max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message that says to have ", want_, " bytes; the limit is ", limits_.max_bytes));
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
    TDOCK_ASSIGN_OR_RETURN(MetaBatch batch, DecodeFrame(bytes.Slice(at, length), {.max_frame_bytes = limits_.max_bytes,
                                                                                  .allow_unchecked = true}));
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
