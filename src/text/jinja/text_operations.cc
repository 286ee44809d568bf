#include "text/jinja/text_operations.h"

#include <algorithm>
#include <cstring>

namespace tdock::jinja {
namespace {

// Each character as `map` has it.
template <class Map>
Text MapCharacters(const Text& text, const Map& map) {
  const absl::string_view bytes = text.bytes();
  Text mapped;
  mapped.Reserve(bytes.size());
  std::string buffer;
  const std::vector<Text::Run> runs = text.runs();
  size_t begin = 0;
  for (const Text::Run& run : runs) {
    buffer.clear();
    for (size_t at = begin; at < run.end;) {
      const Character c = CharacterAt(bytes, at);
      const Mapped codes = map(c.code, at);
      for (size_t i = 0; i < codes.count; ++i) {
        if (codes.codes[i] < 0x80) {
          buffer.push_back(static_cast<char>(codes.codes[i]));
        } else {
          AppendCharacter(codes.codes[i], buffer);
        }
      }
      at += c.bytes;
    }
    mapped.Append(buffer, run.source);
    begin = run.end;
  }
  return mapped;
}

constexpr char32_t kSigma = 0x3A3;

// Whether the sigma at `at` ends a word (Unicode, table 3-17).
bool IsFinalSigma(absl::string_view bytes, size_t at) {
  size_t before = at;
  bool is_after_cased = false;
  while (before > 0 && !is_after_cased) {
    const Character c = CharacterBefore(bytes, before);
    before -= c.bytes;
    if (IsCaseIgnorable(c.code)) continue;
    if (!IsCased(c.code)) break;
    is_after_cased = true;
  }
  if (!is_after_cased) return false;
  for (size_t after = at + 2; after < bytes.size();) {
    const Character c = CharacterAt(bytes, after);
    after += c.bytes;
    if (!IsCaseIgnorable(c.code)) return !IsCased(c.code);
  }
  return true;
}

Mapped LowerAt(absl::string_view bytes, char32_t code, size_t at) {
  if (code == kSigma) return {{IsFinalSigma(bytes, at) ? char32_t{0x3C2} : char32_t{0x3C3}}, 1};
  return ToLower(code);
}

}  // namespace

size_t FindBytes(absl::string_view text, absl::string_view wanted, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  const void* const found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return absl::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastBytes(Meter& meter, absl::string_view text, absl::string_view wanted) {
  constexpr size_t kShort = 64;
  if (wanted.size() > kShort && !meter.SpendBytes(text.size() * (wanted.size() / 8))) return absl::string_view::npos;
  return text.rfind(wanted);
}

Text Strip(const Text& text, std::optional<absl::string_view> characters, Sides sides) {
  const absl::string_view bytes = text.bytes();
  const auto goes = [&](size_t at, const Character& c) {
    if (!characters) return IsSpace(c.code);
    return characters->find(bytes.substr(at, c.bytes)) != absl::string_view::npos;
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (sides.left && begin < end) {
    const Character c = CharacterAt(bytes, begin);
    if (!goes(begin, c)) break;
    begin += c.bytes;
  }
  while (sides.right && begin < end) {
    const Character c = CharacterBefore(bytes, end);
    if (!goes(end - c.bytes, c)) break;
    end -= c.bytes;
  }
  return text.Substr(begin, end);
}

Text Upper(const Text& text) {
  return MapCharacters(text, [](char32_t code, size_t) { return ToUpper(code); });
}

Text Lower(const Text& text) {
  return MapCharacters(text, [&](char32_t code, size_t at) { return LowerAt(text.bytes(), code, at); });
}

Text Capitalize(const Text& text) {
  return MapCharacters(
      text, [&](char32_t code, size_t at) { return at == 0 ? ToTitle(code) : LowerAt(text.bytes(), code, at); });
}

Text Title(const Text& text) {
  bool is_after_cased = false;
  return MapCharacters(text, [&](char32_t code, size_t at) {
    const bool is_inside = std::exchange(is_after_cased, IsCased(code));
    return is_inside ? LowerAt(text.bytes(), code, at) : ToTitle(code);
  });
}

Text SwapCase(const Text& text) {
  return MapCharacters(text, [&](char32_t code, size_t at) -> Mapped {
    if (IsUpper(code)) return LowerAt(text.bytes(), code, at);
    return IsLower(code) ? ToUpper(code) : Mapped{{code}, 1};
  });
}

Text CaseFold(const Text& text) {
  return MapCharacters(text, [](char32_t code, size_t) { return ToFolded(code); });
}

Text Replace(Meter& meter, const Text& text, absl::string_view old, const Text& replacement, int64_t limit) {
  const absl::string_view bytes = text.bytes();
  TextBuilder out(meter);
  meter.SpendBytes(bytes.size());
  size_t begin = 0;
  if (old.empty()) {  // between all characters, and at both ends
    for (size_t at = 0; limit != 0 && out.ok(); --limit) {
      out.Append(replacement);
      if (at >= bytes.size()) return out.Take();
      at += CharacterAt(bytes, at).bytes;
      out.Append(text, begin, at);
      begin = at;
    }
    out.Append(text, begin, bytes.size());
    return out.Take();
  }
  while (limit != 0 && out.ok()) {
    const size_t found = FindBytes(bytes, old, begin);
    if (found == absl::string_view::npos) break;
    out.Append(text, begin, found);
    out.Append(replacement);
    begin = found + old.size();
    --limit;
  }
  out.Append(text, begin, bytes.size());
  return out.Take();
}

namespace {

void Add(Meter& meter, Text part, std::vector<Text>& parts) {
  parts.push_back(std::move(part));
  meter.Spend(1);
  meter.MayHold(parts.size() * (sizeof(Text) + 64));
}

std::vector<Text> SplitAtSpaces(Meter& meter, const Text& text, int64_t limit) {
  const absl::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t at = 0;
  while (!meter.failed()) {
    while (at < bytes.size() && IsSpace(CharacterAt(bytes, at).code)) at += CharacterAt(bytes, at).bytes;
    if (at >= bytes.size()) break;
    if (limit-- == 0) {
      Add(meter, text.Substr(at, bytes.size()), parts);
      break;
    }
    const size_t begin = at;
    while (at < bytes.size() && !IsSpace(CharacterAt(bytes, at).code)) at += CharacterAt(bytes, at).bytes;
    Add(meter, text.Substr(begin, at), parts);
  }
  return parts;
}

std::vector<Text> SplitAtSpacesFromRight(Meter& meter, const Text& text, int64_t limit) {
  const absl::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t at = bytes.size();
  while (!meter.failed()) {
    while (at > 0 && IsSpace(CharacterBefore(bytes, at).code)) at -= CharacterBefore(bytes, at).bytes;
    if (at == 0) break;
    if (limit-- == 0) {
      Add(meter, text.Substr(0, at), parts);
      break;
    }
    const size_t end = at;
    while (at > 0 && !IsSpace(CharacterBefore(bytes, at).code)) at -= CharacterBefore(bytes, at).bytes;
    Add(meter, text.Substr(at, end), parts);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<Text> Split(Meter& meter, const Text& text, std::optional<absl::string_view> separator, int64_t limit,
                        bool from_right) {
  meter.SpendBytes(text.size());
  if (!separator) return from_right ? SplitAtSpacesFromRight(meter, text, limit) : SplitAtSpaces(meter, text, limit);
  const absl::string_view bytes = text.bytes();
  std::vector<Text> parts;
  if (from_right) {
    size_t end = bytes.size();
    while (limit-- != 0 && !meter.failed()) {
      const size_t found =
          end < separator->size() ? absl::string_view::npos : FindLastBytes(meter, bytes.substr(0, end), *separator);
      if (found == absl::string_view::npos) break;
      Add(meter, text.Substr(found + separator->size(), end), parts);
      end = found;
    }
    Add(meter, text.Substr(0, end), parts);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (limit-- != 0 && !meter.failed()) {
    const size_t found = FindBytes(bytes, *separator, begin);
    if (found == absl::string_view::npos) break;
    Add(meter, text.Substr(begin, found), parts);
    begin = found + separator->size();
  }
  Add(meter, text.Substr(begin, bytes.size()), parts);
  return parts;
}

std::vector<Text> SplitLines(Meter& meter, const Text& text, bool keeps_ends) {
  meter.SpendBytes(text.size());
  const absl::string_view bytes = text.bytes();
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size() && !meter.failed();) {
    const Character c = CharacterAt(bytes, at);
    size_t next = at + c.bytes;
    if (IsLineEnd(c.code)) {
      if (c.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      Add(meter, text.Substr(begin, keeps_ends ? next : at), lines);
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) Add(meter, text.Substr(begin, bytes.size()), lines);
  return lines;
}

Text EscapeHtml(Meter& meter, const Text& text) {
  const auto entity = [](char c) -> absl::string_view {
    switch (c) {
      case '&':
        return "&amp;";
      case '<':
        return "&lt;";
      case '>':
        return "&gt;";
      case '\'':
        return "&#39;";
      case '"':
        return "&#34;";
      default:
        return "";
    }
  };
  TextBuilder out(meter);
  meter.SpendBytes(text.size());
  size_t plain = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const absl::string_view escaped = entity(text.bytes()[at]);
    if (escaped.empty()) continue;
    out.Append(text, plain, at);
    out.Append(escaped, text.SourceAt(at));
    plain = at + 1;
  }
  out.Append(text, plain, text.size());
  return out.Take();
}

Text Pad(Meter& meter, const Text& text, int64_t width, absl::string_view fill, Alignment alignment) {
  if (!meter.SpendBytes(text.size())) return text;
  const int64_t length = CountCharacters(text.bytes());
  if (width <= length) return text;
  const int64_t padding = width - length;
  int64_t left = 0;
  if (alignment == Alignment::kRight) left = padding;
  if (alignment == Alignment::kCenter) left = padding / 2 + (padding & width & 1);
  TextBuilder out(meter);
  out.AppendTimes(fill, left);
  out.Append(text);
  out.AppendTimes(fill, padding - left);
  return out.Take();
}

std::vector<Value> ToValues(Machine& machine, std::vector<Text> texts) {
  std::vector<Value> values;
  values.reserve(texts.size());
  for (Text& text : texts) values.push_back(machine.String(std::move(text)));
  return values;
}

}  // namespace tdock::jinja
