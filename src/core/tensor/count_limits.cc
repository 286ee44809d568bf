#include "core/tensor/count_limits.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock {

absl::Status CheckAtMost(absl::string_view what, int64_t value, int64_t most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, "; it must be at most ", most));
}

absl::Status CheckRepeatedBytes(const Column& column, int64_t total) {
  const int64_t rows = column.rows(), bytes = column.payload_bytes();
  if (rows == 0 || bytes == 0) return absl::OkStatus();
  const int64_t whole = total / rows;
  if (whole == 0 || bytes <= kMaxColumnBytes / whole) {
    TDOCK_ASSIGN_OR_RETURN(const Column rest, column.Slice(0, total % rows));
    if (rest.payload_bytes() <= kMaxColumnBytes - whole * bytes) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(rows, " rows of ", bytes, " bytes, repeated to ", total,
                                                 " rows, exceed the most bytes of a column, ", kMaxColumnBytes));
}

}  // namespace tdock
