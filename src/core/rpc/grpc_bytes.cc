#include "core/rpc/grpc_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"

namespace tdock::rpc {
namespace {

// Sharing a buffer costs an allocation and a slice of its own in every list that gRPC makes; below this size, copying
// is cheaper.
constexpr size_t kCopyBelowBytes = 4096;

// A byte that is not printable ASCII is sent as three, and clients accept headers of 64 KiB (stream_client.cc).
constexpr size_t kMaxStatusMessageBytes = 12 << 10;

grpc::Slice Share(const Buffer& buffer) {
  auto* held = new Buffer(buffer);
  // gRPC only reads what it sends; its slices have no const variant.
  return grpc::Slice(
      const_cast<std::byte*>(buffer.data()), buffer.size(), [](void* share) { delete static_cast<Buffer*>(share); },
      held);
}

grpc::Slice Join(std::span<const Buffer> buffers) {
  size_t size = 0;
  for (const Buffer& buffer : buffers) size += buffer.size();
  grpc::Slice joined(size);
  auto* at = const_cast<uint8_t*>(joined.begin());
  for (const Buffer& buffer : buffers) {
    if (buffer.size() == 0) continue;
    std::memcpy(at, buffer.data(), buffer.size());
    at += buffer.size();
  }
  return joined;
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(const Message& message) {
  std::vector<grpc::Slice> slices;
  slices.reserve(message.size());
  for (size_t i = 0; i < message.size();) {
    size_t end = i;
    while (end < message.size() && message[end].size() < kCopyBelowBytes) ++end;
    if (end > i) {
      slices.push_back(Join(std::span(message).subspan(i, end - i)));
      i = end;
    } else {
      slices.push_back(Share(message[i++]));
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

ReceivedPieces::ReceivedPieces(const grpc::ByteBuffer& bytes) {
  // Fails only for invalid compressed bytes, and neither side offers compression.
  if (!bytes.Dump(&slices_).ok()) slices_.clear();
  pieces_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMaxStatusMessageBytes) {
    size_t kept = kMaxStatusMessageBytes;
    while (kept > 0 && (static_cast<unsigned char>(message[kept]) & 0xc0) == 0x80) --kept;  // whole UTF-8 characters
    const size_t left_out = message.size() - kept;
    message.resize(kept);
    absl::StrAppend(&message, "… (", left_out, " more bytes)");
  }
  // The codes have the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

gpr_timespec ToGrpc(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::ZeroDuration());
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(left);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(nanoseconds, GPR_TIMESPAN));
}

}  // namespace tdock::rpc
