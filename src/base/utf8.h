// UTF-8 (RFC 3629), read strictly: overlong forms, surrogates and code points above U+10FFFF are not valid.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock {

struct Utf8Char {
  char32_t code;
  size_t bytes;  // 1 to 4
};

// The first character of `text`; nothing if `text` is empty or does not begin with a valid character.
std::optional<Utf8Char> FirstUtf8Char(absl::string_view text);

// The offset of the first byte that belongs to no valid character; nothing if all of `text` is valid.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// Text from outside as a message may show it: valid UTF-8 on one line, with C escapes for the rest, and an ellipsis in
// place of what exceeds `max_bytes`.
std::string EscapeForMessage(absl::string_view text, size_t max_bytes = 80);

}  // namespace tdock
