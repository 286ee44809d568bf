#include "cli/printable.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/utf8.h"

namespace tdock::cli {

std::string Printable(absl::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  absl::string_view rest = valid;
  std::string shown;
  while (const std::optional<Utf8Char> next = FirstUtf8Char(rest)) {
    const absl::string_view bytes = rest.substr(0, next->bytes);
    const bool stays = next->code == '\n' || next->code == '\t' || !IsControl(next->code);
    shown += stays ? std::string(bytes) : EscapeForMessage(bytes);
    rest.remove_prefix(next->bytes);
  }
  return shown;
}

std::string PrintableJson(absl::string_view json) {
  const std::string valid = ReplaceInvalidUtf8(json);
  absl::string_view rest = valid;
  std::string shown;
  while (const std::optional<Utf8Char> next = FirstUtf8Char(rest)) {
    if (next->code >= 0x7F && IsControl(next->code)) {
      absl::StrAppendFormat(&shown, "\\u%04x", static_cast<uint32_t>(next->code));
    } else {
      absl::StrAppend(&shown, rest.substr(0, next->bytes));
    }
    rest.remove_prefix(next->bytes);
  }
  return shown;
}

}  // namespace tdock::cli
