// Reads a frame that arrives in pieces, such as those of a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor/checksum.h"
#include "core/tensor/frame_header.h"

namespace tdock {

// Reads one frame (docs/frame.md) from its bytes in order, however they are cut, into memory from `allocate`: one
// buffer for each block, requested when the block begins, so that a dock can adopt it. Nothing is requested before the
// whole header has been validated, nor for an empty block. Each byte is checked after it was copied, so a peer that
// changes the pieces meanwhile gains nothing by it.
//
// The errors are those of DecodeFrame(), as early as possible; and ResourceExhausted if `allocate` throws
// std::bad_alloc. After an error every call returns it. Not thread-safe.
//
//   while (!reader.done()) { TDOCK_RETURN_IF_ERROR(reader.Feed(Receive(at most reader.missing()))); }
//   return reader.Finish();
class FrameReader {
 public:
  FrameReader(const FrameLimits& limits, std::function<Buffer(size_t)> allocate);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // The next bytes, none of them beyond the end of the frame.
  absl::Status Feed(std::span<const std::byte> bytes);

  // How many bytes are still to come, as far as is known: until the first 40 bytes have arrived, the rest of these.
  uint64_t missing() const;
  bool done() const { return missing() == 0; }
  // Whether these next bytes complete a part that takes long to check: a header of at least this size, or a frame.
  bool WouldComplete(std::span<const std::byte> bytes, uint64_t header_bytes, uint64_t frame_bytes) const;

  // The batch; call it once: after it the reader is empty.
  absl::StatusOr<MetaBatch> Finish();

 private:
  // Each consumes its bytes from the front of `bytes`.
  absl::Status TakeHeader(std::span<const std::byte>& bytes);
  absl::Status TakeBlocks(std::span<const std::byte>& bytes);
  absl::Status TakeZeros(std::span<const std::byte>& bytes, uint64_t end);
  void TakeValues(std::span<const std::byte>& bytes);

  absl::Status OpenBlock();
  absl::Status CloseBlock();
  const FrameBlock& block() const { return header_->blocks[closed_]; }
  bool all_closed() const { return closed_ == header_->blocks.size(); }

  const FrameLimits limits_;
  const std::function<Buffer(size_t)> allocate_;
  absl::Status status_;
  uint64_t fed_ = 0;
  std::string header_bytes_;  // until it is read
  std::optional<FramePrelude> prelude_;
  std::optional<FrameHeader> header_;
  size_t closed_ = 0;            // completed blocks
  std::vector<Buffer> buffers_;  // of those, and of the one that is being read
  RunningChecksum checksum_;     // of that one
};

}  // namespace tdock
