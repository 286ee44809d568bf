// The messages of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tdock/buffer.h"

namespace tdock::rpc {

// A message to send: the concatenated bytes of the buffers. Large buffers are shared, not copied, until the last byte
// was sent; small ones are copied together. The boundaries between buffers are not sent.
using Message = std::vector<Buffer>;

// A received message, in as many pieces as it arrived in, cut anywhere.
using Pieces = std::span<const std::span<const std::byte>>;

inline int64_t SizeOf(const Message& message) {
  int64_t size = 0;
  for (const Buffer& buffer : message) size += static_cast<int64_t>(buffer.size());
  return size;
}

inline int64_t SizeOf(Pieces pieces) {
  int64_t size = 0;
  for (std::span<const std::byte> piece : pieces) size += static_cast<int64_t>(piece.size());
  return size;
}

// Bytes as messages of the size that gRPC handles best, which share the buffers' memory; one empty message if there are
// none.
std::vector<Message> CutMessages(std::span<const Buffer> pieces);

// The largest message that a stream accepts unless its options say otherwise. Larger data is sent as several messages.
inline constexpr int64_t kMaxMessageBytes = 8 << 20;

}  // namespace tdock::rpc
