// Conversions to and from gRPC's types. For this module only.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/rpc/message.h"

namespace tdock::rpc {

grpc::ByteBuffer ToByteBuffer(const Message& message);

// The pieces of a received message, valid as long as this object.
class ReceivedPieces {
 public:
  explicit ReceivedPieces(const grpc::ByteBuffer& bytes);
  Pieces pieces() const { return pieces_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<std::span<const std::byte>> pieces_;
};

// The message of a status is sent in a header: a long one is truncated, and says so.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// A time of Clock::Real() as a deadline of gRPC's.
gpr_timespec ToGrpc(absl::Time deadline);

}  // namespace tdock::rpc
