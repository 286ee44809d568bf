#include "dock/service/remote/envelope.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::service {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);

Buffer Own(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return Buffer::Wrap(owner->data(), owner->size(), owner);
}

}  // namespace

absl::StatusOr<std::vector<rpc::Message>> ToMessages(std::string control, const Batch& batch) {
  if (control.size() > kMaxControlBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", control.size(),
                                                   " bytes, not counting cells; the limit is ", kMaxControlBytes,
                                                   ": ask for less in one call"));
  }
  const auto length = static_cast<uint32_t>(control.size());
  control.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  std::vector<Buffer> pieces = {Own(std::move(control))};
  if (!batch.empty()) {
    TDOCK_ASSIGN_OR_RETURN(EncodedFrame frame, EncodeFrame(MetaBatch(batch)));
    pieces.push_back(Own(std::move(frame.header)));
    static const std::string kZeros(EncodedFrame::kAlignment, '\0');
    for (Buffer& block : frame.blocks) {
      const size_t rest = block.size() % EncodedFrame::kAlignment;
      pieces.push_back(std::move(block));
      if (rest != 0) {
        pieces.push_back(Buffer::Wrap(kZeros.data(), EncodedFrame::kAlignment - rest, nullptr));
      }
    }
  }
  return rpc::CutMessages(pieces);
}

absl::Status EnvelopeReader::Feed(rpc::Pieces message) {
  for (std::span<const std::byte> piece : message) TDOCK_RETURN_IF_ERROR(FeedPiece(piece));
  return absl::OkStatus();
}

void EnvelopeReader::TakeUpTo(size_t size, std::span<const std::byte>& bytes) {
  if (control_.size() >= size) return;
  const size_t step = std::min(size - control_.size(), bytes.size());
  control_.append(reinterpret_cast<const char*>(bytes.data()), step);
  bytes = bytes.subspan(step);
}

absl::Status EnvelopeReader::FeedPiece(std::span<const std::byte> bytes) {
  if (!controlled_) {
    TakeUpTo(kLengthBytes, bytes);
    if (control_.size() < kLengthBytes) return absl::OkStatus();
    uint32_t length = 0;
    std::memcpy(&length, control_.data(), sizeof(length));
    if (length > kMaxControlBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a control message of ", length, " bytes; the limit is ", kMaxControlBytes));
    }
    TakeUpTo(kLengthBytes + length, bytes);
    if (control_.size() < kLengthBytes + length) return absl::OkStatus();
    controlled_ = true;
    TDOCK_ASSIGN_OR_RETURN(frame_, on_control_(std::exchange(control_, std::string()).substr(kLengthBytes)));
  }
  if (bytes.empty()) return absl::OkStatus();
  if (frame_ == nullptr) return absl::InvalidArgumentError("bytes after a complete message");
  return frame_->Feed(bytes);
}

absl::StatusOr<Batch> EnvelopeReader::Finish() {
  if (frame_ == nullptr) return Batch();
  TDOCK_ASSIGN_OR_RETURN(MetaBatch batch, frame_->Finish());
  return batch.columns();
}

}  // namespace tdock::service
