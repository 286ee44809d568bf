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

// The columns of `rows` for the frame that follows the message. Absent cells are zeros in a dense column, and empty in
// others. Contiguous cells are not copied; others are, into `memory`, or the heap if it is null. ResourceExhausted for
// more than `max_bytes`. Throws std::bad_alloc as the memory does.
absl::StatusOr<Batch> CellsOf(const Rows& rows, Memory* memory, uint64_t max_bytes);
// The number of bytes of these columns; INT64_MAX on overflow.
int64_t BytesInFrame(const Rows& rows);

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

// From the frame that follows a message, which has the message's columns.
absl::StatusOr<CellBytes> CellsIn(const message::Rows& message, const Batch& frame);
// From a message with views: cells in the message are copied, to where they are aligned as in the dock. `look` returns
// the memory of a place, of exactly this many bytes, or an error.
using Look = std::function<absl::StatusOr<const std::byte*>(uint64_t segment, uint64_t offset, uint64_t bytes)>;
absl::StatusOr<CellBytes> CellsIn(const message::Rows& message, const Look& look);

// InvalidArgument if the lists are inconsistent.
absl::StatusOr<Rows> Decode(message::Rows message, CellBytes bytes);

}  // namespace tdock::service
