// The messages of a call over gRPC: the first begins with a control message, and the frame of a batch, if there is one,
// follows it in as many messages as it needs.
//
//   | u32 length | control: Request or Reply | frame …        | … frame …        | … frame |
//   └── first message ────────────────────────────────────┘   └── message ──┘    └───────┘
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rpc/message.h"
#include "core/tensor/frame_reader.h"
#include "tdock/frame.h"

namespace tdock::service {

inline constexpr absl::string_view kCallMethod = "/tdock.v1.Dock/Call";
inline constexpr absl::string_view kSessionMethod = "/tdock.v1.Dock/Session";

// A control message without the batch.
inline constexpr size_t kMaxControlBytes = 64 << 20;

// The messages for a control message and the batch, unless that is empty. They share the batch's memory.
absl::StatusOr<std::vector<rpc::Message>> ToMessages(std::string control, const Batch& batch);

// The inverse. Not thread-safe.
class EnvelopeReader {
 public:
  // Once the control message is complete, returns the reader for the frame that follows, if there is one.
  using OnControl = std::function<absl::StatusOr<std::unique_ptr<FrameReader>>(const std::string& control)>;

  explicit EnvelopeReader(OnControl on_control) : on_control_(std::move(on_control)) {}

  // InvalidArgument for extra bytes, or too long a control message; errors of on_control and FrameReader.
  absl::Status Feed(rpc::Pieces message);
  // Whether everything has arrived.
  bool done() const { return controlled_ && (frame_ == nullptr || frame_->done()); }
  // After that: the batch, which is empty if there was none.
  absl::StatusOr<Batch> Finish();

 private:
  // Appends bytes to the control message until it has this size, including its length prefix.
  void TakeUpTo(size_t size, std::span<const std::byte>& bytes);
  absl::Status FeedPiece(std::span<const std::byte> bytes);

  const OnControl on_control_;
  std::string control_;  // with its length prefix
  bool controlled_ = false;
  std::unique_ptr<FrameReader> frame_;
};

}  // namespace tdock::service
