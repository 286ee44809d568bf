// Taken and fetched rows as messages: their metadata, and where their bytes are.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "dock/service/wire/messages.h"
#include "dock/table/rows_data.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::service {

// Everything but the bytes.
message::Rows Encode(const Rows& rows);

// Where the bytes are, for a reader who sees the same memory. Cells that `locate` does not find are put into the
// message. ResourceExhausted if those have more than kMaxInlineBytes, OutOfRange if the cells are scattered over more
// than `max_runs` runs of adjacent ones: then Gathered() helps.
struct SharedPlace {
  uint64_t segment = 0;
  uint64_t offset = 0;
  // The size from there to the end of the segment.
  uint64_t bytes = 0;
};
using Locate = std::function<std::optional<SharedPlace>(const std::byte*)>;
inline constexpr uint64_t kMaxInlineBytes = 16 << 20;
absl::Status EncodeViews(const Rows& rows, const Locate& locate, message::Rows* message,
                         size_t max_runs = std::numeric_limits<size_t>::max());

// The bytes of the cells, to be sent behind the message: those of each column one behind the other, from a multiple of
// 64 bytes on. Long runs of adjacent cells are not copied. ResourceExhausted for more than `max_bytes`.
struct StreamedCells {
  std::vector<std::span<const std::byte>> pieces = {};
  // Keeps alive what the rows do not.
  std::shared_ptr<const void> copies = {};
};
absl::StatusOr<StreamedCells> EncodeStreamed(const Rows& rows, message::Rows& message, uint64_t max_bytes);

// The same rows, with copies of their cells: those of each column one behind the other in `memory`. They do not keep
// the cells that were copied. Throws std::bad_alloc as the memory does.
Rows Gathered(const Rows& rows, Memory& memory);

// The bytes of the existing cells, column after column.
struct CellBytes {
  std::vector<std::span<const std::byte>> cells = {};
  // Keep the bytes alive.
  std::vector<std::shared_ptr<const void>> pins = {};
  // As in Rows::Data.
  LookPrivately look_privately = {};
};

// From a message with views: cells in the message are copied, to where they are aligned as in the dock. `look` returns
// the memory of a place, of exactly this many bytes, or an error.
using Look = std::function<absl::StatusOr<const std::byte*>(uint64_t segment, uint64_t offset, uint64_t bytes)>;
// `streamed`: the bytes that followed the message, which the caller keeps alive.
absl::StatusOr<CellBytes> CellsIn(const message::Rows& message, const Look& look, const Buffer& streamed = Buffer());

// InvalidArgument if the lists are inconsistent.
absl::StatusOr<Rows> Decode(message::Rows message, CellBytes bytes);

}  // namespace tdock::service
