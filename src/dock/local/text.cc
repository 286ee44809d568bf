#include "dock/local/text.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::dock {
namespace {

absl::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool IsInsideOfCharacter(std::byte byte) { return (byte & std::byte{0xC0}) == std::byte{0x80}; }

// Checks all rows at once: valid together, and none begins in the middle of a character.
bool IsAllText(const Column& column) {
  if (FindInvalidUtf8(TextOf(column.PayloadBytes())).has_value()) return false;
  for (int64_t row = 0; row < column.rows(); ++row) {
    const std::span<const std::byte> bytes = column.RowBytes(row);
    if (!bytes.empty() && IsInsideOfCharacter(bytes.front())) return false;
  }
  return true;
}

absl::Status CheckRows(const NamedColumn& given) {
  const Column& column = given.column;
  if (IsAllText(column)) return absl::OkStatus();
  for (int64_t row = 0; row < column.rows(); ++row) {
    const std::optional<size_t> place = FindInvalidUtf8(TextOf(column.RowBytes(row)));
    if (!place.has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(given.name), "', row ", row,
                                                   " of the batch: byte ", *place,
                                                   " does not begin a UTF-8 character; a column of bytes accepts any"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckText(const Batch& batch, std::span<const size_t> columns) {
  for (size_t i : columns) TDOCK_RETURN_IF_ERROR(CheckRows(batch.columns()[i]));
  return absl::OkStatus();
}

}  // namespace tdock::dock
