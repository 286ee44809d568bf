#include "text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/character_tables.h"

namespace tdock::jinja {
namespace {

template <size_t n>
bool IsIn(const CharacterRange (&ranges)[n], char32_t code) {
  const auto* const found = std::lower_bound(std::begin(ranges), std::end(ranges), code,
                                             [](const CharacterRange& range, char32_t c) { return range.last < c; });
  return found != std::end(ranges) && found->first <= code;
}

template <size_t n>
const LongMapping* FindLong(const LongMapping (&mappings)[n], char32_t code) {
  const auto* const found = std::lower_bound(std::begin(mappings), std::end(mappings), code,
                                             [](const LongMapping& mapping, char32_t c) { return mapping.code < c; });
  return found != std::end(mappings) && found->code == code ? found : nullptr;
}

template <size_t n>
Mapped MapBy(const LongMapping (&mappings)[n], char32_t code, utf8proc_int32_t single) {
  if (const LongMapping* const found = FindLong(mappings, code)) {
    return {found->mapped, found->mapped[2] == 0 ? size_t{2} : size_t{3}};
  }
  return {{static_cast<char32_t>(single)}, 1};
}

utf8proc_category_t CategoryOf(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

}  // namespace

Character CharacterBefore(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return CharacterAt(text, begin);
}

void AppendCharacter(char32_t code, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

size_t OffsetOf(absl::string_view text, int64_t character) {
  size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += CharacterAt(text, at).bytes;
  return at;
}

bool IsSpace(char32_t code) {
  if (code < 0x80) return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool IsLineEnd(char32_t code) {
  return (code >= 0xA && code <= 0xD) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

bool IsLetter(char32_t code) {
  const auto category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_ND; }
bool IsDigit(char32_t code) { return IsDecimal(code) || IsIn(kOtherDigits, code); }
bool IsNumeric(char32_t code) {
  const auto category = CategoryOf(code);
  return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) || IsIn(kOtherNumeric, code);
}
bool IsLower(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_LL || IsIn(kOtherLowercase, code); }
bool IsUpper(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_LU || IsIn(kOtherUppercase, code); }
bool IsTitle(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_LT; }

bool IsPrintable(char32_t code) {
  switch (CategoryOf(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool IsWord(char32_t code) { return code == '_' || IsLetter(code) || IsNumeric(code); }
bool IsIdentifierStart(char32_t code) {
  return code == '_' || IsLetter(code) || CategoryOf(code) == UTF8PROC_CATEGORY_NL;
}

Mapped ToUpper(char32_t code) {
  if (code < 0x80) return {{code >= 'a' && code <= 'z' ? code - 32 : code}, 1};
  return MapBy(kLongUpper, code, utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

Mapped ToTitle(char32_t code) {
  if (code < 0x80) return ToUpper(code);
  return MapBy(kLongTitle, code, utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

Mapped ToLower(char32_t code) {
  if (code < 0x80) return {{code >= 'A' && code <= 'Z' ? code + 32 : code}, 1};
  if (code == 0x130) return {{U'i', 0x307}, 2};
  return {{static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)))}, 1};
}

Mapped ToFolded(char32_t code) {
  std::array<utf8proc_int32_t, 8> parts = {};
  int last_class = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                                                         parts.size(), UTF8PROC_CASEFOLD, &last_class);
  if (count < 1 || count > 3) return {{code}, 1};
  Mapped folded = {{}, static_cast<size_t>(count)};
  for (size_t i = 0; i < folded.count; ++i) folded.codes[i] = static_cast<char32_t>(parts[i]);
  return folded;
}

bool IsCased(char32_t code) { return IsLower(code) || IsUpper(code) || IsTitle(code); }

bool IsCaseIgnorable(char32_t code) {
  switch (CategoryOf(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x387 || code == 0x55F ||
         code == 0x5F4 || code == 0x2018 || code == 0x2019 || code == 0x2024 || code == 0x2027 || code == 0xFE13 ||
         code == 0xFE52 || code == 0xFE55 || code == 0xFF07 || code == 0xFF0E || code == 0xFF1A;
}

}  // namespace tdock::jinja
