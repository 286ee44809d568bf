// Rows as bytes, for the other ranks of a replica, which run the same program. For this module only.
#pragma once

#include "absl/status/statusor.h"
#include "tdock/buffer.h"
#include "tdock/meta.h"
#include "tdock/rows.h"

namespace tdock::runtime {

struct RowsMessage {
  Meta facts = {};
  Rows rows = {};
};

// One frame (docs/frame.md). A column of the frame, which is named by its number, has the cells of a column of the
// rows; others have what there is to say of each row and of each cell. Errors are those of EncodeFrame().
absl::StatusOr<Buffer> Encode(const RowsMessage& message);

// The rows share the memory of `bytes`. InvalidArgument or DataLoss for bytes that are no message.
absl::StatusOr<RowsMessage> Decode(const Buffer& bytes);

}  // namespace tdock::runtime
