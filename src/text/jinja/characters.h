// What Python says about characters. The tables are utf8proc's. Internal to this module.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::jinja {

struct Character {
  char32_t code;
  size_t bytes;
};

// The character at `offset` of valid UTF-8, which is inside of it.
inline Character CharacterAt(absl::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[offset + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}
// The one that ends at `end`, which is not the beginning.
Character CharacterBefore(absl::string_view text, size_t end);
void AppendCharacter(char32_t code, std::string& text);

int64_t CountCharacters(absl::string_view text);
// The offset of a character by number; the size of the text for what is behind its end.
size_t OffsetOf(absl::string_view text, int64_t character);

bool IsSpace(char32_t code);      // str.isspace
bool IsLineEnd(char32_t code);    // of str.splitlines
bool IsLetter(char32_t code);     // str.isalpha
bool IsDecimal(char32_t code);    // str.isdecimal
bool IsDigit(char32_t code);      // str.isdigit
bool IsNumeric(char32_t code);    // str.isnumeric
bool IsLower(char32_t code);      // the property Lowercase
bool IsUpper(char32_t code);      // the property Uppercase
bool IsTitle(char32_t code);      // the category Lt
bool IsPrintable(char32_t code);  // str.isprintable
bool IsWord(char32_t code);       // \w
bool IsIdentifierStart(char32_t code);

// Up to three characters that one becomes.
struct Mapped {
  std::array<char32_t, 3> codes;
  size_t count;
};
Mapped ToUpper(char32_t code);
Mapped ToLower(char32_t code);
Mapped ToTitle(char32_t code);
Mapped ToFolded(char32_t code);  // str.casefold
bool IsCased(char32_t code);
bool IsCaseIgnorable(char32_t code);

}  // namespace tdock::jinja
