// The header of a frame: one parser for a frame in memory and for one that arrives in pieces. docs/frame.md describes
// the bytes. Errors are those of DecodeFrame(): they name the byte, and the column if there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/frame.h"

namespace tdock {

// The first byte is not ASCII, and the line ends reveal line-end conversion, as those of PNG do.
inline constexpr absl::string_view kFrameMagic("\x8aTDK\r\n\x1a\n", 8);
inline constexpr uint32_t kCheckedFrameVersion = 1;
inline constexpr uint32_t kUncheckedFrameVersion = 2;
// Magic, version, number of columns, rows, bytes of the header, bytes of the frame.
inline constexpr size_t kFramePreludeBytes = 40;
inline constexpr size_t kFrameChecksumBytes = 8;

enum class MetaTag : uint8_t { kBool = 0, kInt64 = 1, kDouble = 2, kString = 3, kList = 4, kMap = 5 };

// Of bytes, to the next multiple of EncodedFrame::kAlignment.
constexpr uint64_t RoundUpToBlock(uint64_t bytes) {
  return (bytes + EncodedFrame::kAlignment - 1) / EncodedFrame::kAlignment * EncodedFrame::kAlignment;
}

// InvalidArgument, with the index of the value, if one is neither 0 nor 1: reading any other byte as a bool is
// undefined behaviour.
absl::Status CheckTruths(std::span<const std::byte> values);

// Says what is wrong with the name of a column or a key; nothing if it is valid.
std::optional<std::string> FindNameFault(absl::string_view name, const FrameLimits& limits);

// InvalidArgument unless the bytes are a prefix of a frame's magic bytes.
absl::Status CheckFrameStart(std::span<const std::byte> bytes);

struct FramePrelude {
  uint32_t version = 0;
  uint32_t columns = 0;
  uint64_t rows = 0;
  uint64_t header_bytes = 0;  // including the checksum; at most frame_bytes
  uint64_t frame_bytes = 0;

  bool checked() const { return version == kCheckedFrameVersion; }
};

// From at least the first kFramePreludeBytes bytes. The result is within the limits.
absl::StatusOr<FramePrelude> ReadFramePrelude(std::span<const std::byte> bytes, const FrameLimits& limits);

// DataLoss: a frame of another size than its header says.
absl::Status WrongFrameSize(uint64_t said, uint64_t given);
// The same, for one that ends before its header does.
absl::Status FrameTooShort(uint64_t given);

struct FrameBlock {
  size_t column = 0;
  absl::string_view what;  // "offsets" or "values"
  uint64_t begin = 0;      // in the frame
  uint64_t bytes = 0;
  uint64_t checksum = 0;

  uint64_t end() const { return begin + bytes; }
};

struct FrameColumn {
  std::string name;
  ColumnType type;
  int64_t item_bytes = 0;
  uint64_t described_until = 0;  // the byte of the header after its description
};

struct FrameHeader {
  FramePrelude prelude;
  std::vector<FrameColumn> columns;
  // One or two for each column, in the order of the frame: each begins where the zero padding of the previous one ends,
  // and the padding of the last ends the frame. Their sizes fit the rows and types, as far as that is known without
  // their contents.
  std::vector<FrameBlock> blocks;
  Meta meta;

  // DataLoss if the bytes of the block do not match its checksum, which is given.
  absl::Status CheckBlock(const FrameBlock& block, uint64_t checksum) const;
  // DataLoss if `bytes`, which begin at byte `at` of the frame, are not all zero. `before` is the preceding block; none
  // if it is the header.
  absl::Status CheckZeros(std::span<const std::byte> bytes, uint64_t at, const FrameBlock* before) const;
  // The batch of the blocks' bytes, which were checked. DataLoss if they are not valid columns.
  absl::StatusOr<MetaBatch> MakeBatch(std::vector<Buffer> bytes) &&;
};

// From the first prelude.header_bytes bytes.
absl::StatusOr<FrameHeader> ReadFrameHeader(std::span<const std::byte> bytes, const FramePrelude& prelude,
                                            const FrameLimits& limits);

}  // namespace tdock
