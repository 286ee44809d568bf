// Reads a frame that arrives in pieces, such as those of a socket.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ranges.h"
#include "core/tensor/frame_header.h"

namespace tdock {

// Reads one frame (docs/frame.md) from its bytes, however they are cut, into memory from `allocate`: one buffer for
// each block, requested when its first bytes come, so that a dock can adopt it. The bytes of the header come in order,
// and before all others, which may come in any order. Nothing is requested before the whole header has been validated,
// nor for an empty block. Each byte is checked after it was copied, so a peer that changes the pieces meanwhile gains
// nothing by it.
//
// The errors are those of DecodeFrame(), and InvalidArgument for bytes that come twice or too early; ResourceExhausted
// if `allocate` throws std::bad_alloc. After an error every call returns it. Not thread-safe.
//
//   while (!reader.done()) { TDOCK_RETURN_IF_ERROR(reader.Feed(Receive(at most reader.missing()))); }
//   return reader.Finish();
class FrameReader {
 public:
  FrameReader(const FrameLimits& limits, std::function<Buffer(size_t)> allocate);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // The bytes of the frame from `offset` on.
  absl::Status Place(uint64_t offset, std::span<const std::byte> bytes);
  // The next bytes, for one who has them in order.
  absl::Status Feed(std::span<const std::byte> bytes);
  // Instead of Place(): appends the memory of up to `most` bytes from `offset` on, and takes what was read to there.
  // Nothing is appended before the header is complete.
  void RoomsFor(uint64_t offset, uint64_t most, std::vector<iovec>& rooms);
  absl::Status Filled(uint64_t offset, uint64_t bytes);

  bool has_header() const { return header_.has_value(); }
  // How many bytes are still to come, as far as is known: until the first 40 bytes have arrived, the rest of these.
  uint64_t missing() const;
  bool done() const { return missing() == 0; }
  // The size of the frame; 0 until the first 40 bytes have arrived.
  uint64_t frame_bytes() const { return prelude_ ? prelude_->frame_bytes : 0; }
  // Whether these next bytes complete a header of at least this size, which takes long to check.
  bool WouldCompleteHeader(std::span<const std::byte> bytes, uint64_t header_bytes) const;

  // The batch, whose blocks it checks; call it once: after it the reader is empty.
  absl::StatusOr<MetaBatch> Finish();

 private:
  static constexpr size_t kMaxRooms = 32;

  // Consumes bytes from the front of `bytes`.
  absl::Status TakeHeader(std::span<const std::byte>& bytes);
  absl::Status Open(size_t block);
  // The first block that ends behind this place of the frame.
  size_t BlockAt(uint64_t offset) const;

  const FrameLimits limits_;
  const std::function<Buffer(size_t)> allocate_;
  absl::Status status_;
  uint64_t next_ = 0;         // of Feed()
  uint64_t in_header_ = 0;    // bytes of the header that have come
  std::string header_bytes_;  // those, until it is read
  std::optional<FramePrelude> prelude_;
  std::optional<FrameHeader> header_;
  std::vector<Buffer> buffers_;  // of the blocks, empty until their bytes come
  std::vector<iovec> rooms_;
  Ranges received_;                  // behind the header
  std::array<std::byte, 64> zeros_;  // between two blocks, as they were read
};

}  // namespace tdock
