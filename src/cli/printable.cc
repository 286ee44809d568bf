#include "cli/printable.h"

#include <optional>

#include "core/base/utf8.h"

namespace tdock::cli {

std::string Printable(absl::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  absl::string_view rest = valid;
  std::string shown;
  while (const std::optional<Utf8Char> next = FirstUtf8Char(rest)) {
    const absl::string_view bytes = rest.substr(0, next->bytes);
    shown += next->code != '\n' && IsControl(next->code) ? EscapeForMessage(bytes) : std::string(bytes);
    rest.remove_prefix(next->bytes);
  }
  return shown;
}

}  // namespace tdock::cli
