// Rows that are handed out: what there is to say of them in a message, and where their bytes are.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock.pb.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock {

// All but the bytes.
void Encode(const Rows& rows, v1::Rows* message);

// The columns of `rows`: what goes into the frame behind the message. Cells that are absent are zeros in a dense
// column, and empty in others. Those that lie one behind the other are not copied; others are, into `memory`, or the
// heap if it is null. ResourceExhausted for more than `max_bytes`. Throws std::bad_alloc as the memory does.
absl::StatusOr<Batch> CellsOf(const Rows& rows, Memory* memory, uint64_t max_bytes);
// So many bytes these columns have; INT64_MAX for more than can be counted.
int64_t BytesInFrame(const Rows& rows);

// Where the bytes lie, for a reader who sees the same memory. Cells that lie elsewhere than `locate` knows go into the
// message. Aborted if those have more than kMaxInlineBytes.
struct SharedPlace {
  uint64_t segment = 0;
  uint64_t offset = 0;
  // From there to the end of the segment.
  uint64_t bytes = 0;
};
using Locate = std::function<std::optional<SharedPlace>(const std::byte*)>;
inline constexpr uint64_t kMaxInlineBytes = 16 << 20;
absl::Status EncodeViews(const Rows& rows, const Locate& locate, v1::Rows* message);

// The bytes of the cells that are there, column after column.
struct CellBytes {
  std::vector<std::span<const std::byte>> cells = {};
  // Keep them.
  std::vector<std::shared_ptr<const void>> pins = {};
};

// Those of the frame behind a message, which has the message's columns.
absl::StatusOr<CellBytes> CellsIn(const v1::Rows& message, const Batch& frame);
// Those of a message with views: those in the message are copied, to where they are aligned as in the dock. `look` is
// the memory of a place, of exactly so many bytes, or an error.
using Look = std::function<absl::StatusOr<const std::byte*>(uint64_t segment, uint64_t offset, uint64_t bytes)>;
absl::StatusOr<CellBytes> CellsIn(const v1::Rows& message, const Look& look);

// InvalidArgument if the lists do not fit each other.
absl::StatusOr<Rows> Decode(const v1::Rows& message, CellBytes bytes);

}  // namespace tdock
