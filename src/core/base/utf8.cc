#include "core/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tdock {

std::optional<Utf8Char> FirstUtf8Char(absl::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return Utf8Char{lead, 1};

  size_t bytes;
  char32_t code;
  char32_t smallest;  // that needs this many bytes
  if ((lead & 0xE0) == 0xC0) {
    bytes = 2, code = lead & 0x1F, smallest = 0x80;
  } else if ((lead & 0xF0) == 0xE0) {
    bytes = 3, code = lead & 0x0F, smallest = 0x800;
  } else if ((lead & 0xF8) == 0xF0) {
    bytes = 4, code = lead & 0x07, smallest = 0x10000;
  } else {
    return std::nullopt;
  }
  if (text.size() < bytes) return std::nullopt;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return std::nullopt;
    code = (code << 6) | (byte(i) & 0x3F);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < smallest || surrogate || code > 0x10FFFF) return std::nullopt;
  return Utf8Char{code, bytes};
}

namespace {

// Of the character of two bytes or more that `text`, which is not empty, begins with; 0 if it begins with none
// (Unicode, table 3-7).
size_t BytesOfLongChar(absl::string_view text) {
  const auto is_between = [&](size_t i, unsigned char low, unsigned char high) {
    const auto byte = static_cast<unsigned char>(text[i]);
    return byte >= low && byte <= high;
  };
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return text.size() >= 2 && is_between(1, 0x80, 0xBF) ? 2 : 0;
  if (lead < 0xF0) {
    if (text.size() < 3 || !is_between(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF)) return 0;
    return is_between(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (text.size() < 4 || !is_between(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF)) return 0;
  return is_between(2, 0x80, 0xBF) && is_between(3, 0x80, 0xBF) ? 4 : 0;
}

// How many of the first bytes are ASCII, eight at a time.
size_t CountAscii(absl::string_view text) {
  size_t count = 0;
  for (uint64_t eight = 0; text.size() - count >= sizeof(eight); count += sizeof(eight)) {
    std::memcpy(&eight, text.data() + count, sizeof(eight));
    if ((eight & 0x8080808080808080u) != 0) break;
  }
  while (count < text.size() && static_cast<unsigned char>(text[count]) < 0x80) ++count;
  return count;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  size_t offset = CountAscii(text);
  while (offset < text.size()) {
    const size_t bytes = BytesOfLongChar(text.substr(offset));
    if (bytes == 0) return offset;
    offset += bytes;
    if (offset < text.size() && static_cast<unsigned char>(text[offset]) < 0x80) {
      offset += CountAscii(text.substr(offset));
    }
  }
  return std::nullopt;
}

namespace {

// How many of the first bytes of `text`, which does not begin with a character, are the beginning of one; at least 1.
// The second byte tells overlong forms, surrogates and what lies above U+10FFFF (Unicode, table 3-7).
size_t MaximalSubpart(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t wanted = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
  size_t size = 1;
  for (; size < wanted && size < text.size(); ++size) {
    const unsigned char low = size > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = size > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(size) < low || byte(size) > high) break;
  }
  return size;
}

}  // namespace

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t good = FindInvalidUtf8(text).value_or(text.size());
    valid.append(text.data(), good);
    text.remove_prefix(good);
    if (text.empty()) break;
    valid.append("\xEF\xBF\xBD");
    text.remove_prefix(MaximalSubpart(text));
  }
  return valid;
}

size_t UnfinishedUtf8(absl::string_view text) {
  for (size_t size = std::min<size_t>(3, text.size()); size > 0; --size) {
    const absl::string_view end = text.substr(text.size() - size);
    const auto lead = static_cast<unsigned char>(end[0]);
    const size_t wanted = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    if (wanted > size && MaximalSubpart(end) == size) return size;
  }
  return 0;
}

namespace {

// Appends the escape of the character, or of the invalid byte, that `bytes` is.
void AppendEscape(std::string& shown, absl::string_view bytes, const std::optional<Utf8Char>& character) {
  if (!character || character->code < 0xA0) {
    shown += absl::CHexEscape(bytes);
  } else if (character->code <= 0xFFFF) {
    absl::StrAppendFormat(&shown, "\\u%04x", static_cast<uint32_t>(character->code));
  } else {
    absl::StrAppendFormat(&shown, "\\U%08x", static_cast<uint32_t>(character->code));
  }
}

// `kept`: the ASCII characters that stay although they are unprintable; `escaped`: those that do not although they are
// printable.
std::string Escape(absl::string_view text, size_t max_bytes, absl::string_view kept, absl::string_view escaped) {
  std::string shown;
  shown.reserve(std::min(text.size(), max_bytes));
  for (size_t offset = 0; offset < text.size();) {
    const std::optional<Utf8Char> next = FirstUtf8Char(text.substr(offset));
    const absl::string_view bytes = text.substr(offset, next ? next->bytes : 1);
    if (bytes.size() > max_bytes - offset) return absl::StrCat(shown, "…");
    const bool printable = next && !IsUnprintable(next->code);
    if (printable ? escaped.find(bytes) == absl::string_view::npos : kept.find(bytes) != absl::string_view::npos) {
      shown.append(bytes.data(), bytes.size());
    } else {
      AppendEscape(shown, bytes, next);
    }
    offset += bytes.size();
  }
  return shown;
}

}  // namespace

std::string EscapeForMessage(absl::string_view text, size_t max_bytes) { return Escape(text, max_bytes, "", "\"\\"); }

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", EscapeForMessage(text), "\""); }

std::string EscapeUnprintable(absl::string_view text, size_t max_bytes) { return Escape(text, max_bytes, "", ""); }

std::string EscapeForTerminal(absl::string_view text) { return Escape(text, text.size(), "\n\t", ""); }

}  // namespace tdock
