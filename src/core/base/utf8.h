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

// The first character of `text`; nullopt if `text` is empty or does not begin with a valid character.
std::optional<Utf8Char> FirstUtf8Char(absl::string_view text);

// The offset of the first byte that is not part of a valid character; nullopt if all of `text` is valid.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// `text` with each invalid sequence replaced by U+FFFD: one for each longest prefix of a character that is not
// continued, and one for each other byte (the practice recommended by section 3.9 of the Unicode standard, and that of
// Python's bytes.decode(errors="replace")).
std::string ReplaceInvalidUtf8(absl::string_view text);

// How many of the last bytes of `text`, 0 to 3, are the beginning of a character that more bytes could complete.
size_t UnfinishedUtf8(absl::string_view text);

// U+0000 to U+001F, U+007F, and U+0080 to U+009F: terminals interpret some of the last, too.
inline bool IsControl(char32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Control characters, and characters that show nothing but change how the text around them reads: the soft hyphen,
// marks and overrides of the direction, separators of lines and paragraphs, what has no width, anchors of annotations,
// tags.
inline bool IsUnprintable(char32_t code) {
  if (code < 0xA0) return IsControl(code);
  const auto is_in = [code](char32_t first, char32_t last) { return code >= first && code <= last; };
  return code == 0xAD || code == 0x61C || code == 0x200B || is_in(0x200E, 0x200F) || is_in(0x2028, 0x202E) ||
         is_in(0x2060, 0x206F) || code == 0xFEFF || is_in(0xFFF9, 0xFFFB) || is_in(0xE0000, 0xE007F);
}

// Text from outside in a form for messages: valid UTF-8 on one line, with C escapes for quotes, backslashes and the
// rest, \u202e for what is unprintable, and an ellipsis in place of what exceeds `max_bytes`.
std::string EscapeForMessage(absl::string_view text, size_t max_bytes = 80);
// The same between quotation marks.
std::string Quoted(absl::string_view text);

// The same with quotes and backslashes as they are: for names of files, for JSON, and for text whose parts are escaped.
std::string EscapeUnprintable(absl::string_view text, size_t max_bytes = absl::string_view::npos);
// Likewise, with its line ends and tabs: for text on its way to a terminal or a log.
std::string EscapeForTerminal(absl::string_view text);

}  // namespace tdock
