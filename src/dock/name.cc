#include "dock/name.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tdock {
namespace {

constexpr size_t kMaxBytes = 255;

// Unicode 15, table 3-7: which second bytes follow which first bytes; the others are 80 to BF.
bool IsUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i);
    size_t length = 0;
    uint8_t low = 0x80, high = 0xbf;
    if (first < 0x80) {
      length = 1;
    } else if (first >= 0xc2 && first <= 0xdf) {
      length = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
      length = 3;
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
      length = 4;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (text.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k) {
      if (byte(i + k) < low || byte(i + k) > high) return false;
      low = 0x80, high = 0xbf;
    }
    i += length;
  }
  return true;
}

}  // namespace

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError(absl::StrCat(what, ": the name is empty"));
  if (name.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the name has ", name.size(), " bytes; ", kMaxBytes,
                                                   " are allowed: '", absl::CHexEscape(name.substr(0, 40)), "…'"));
  }
  for (const char c : name) {
    if (static_cast<uint8_t>(c) >= 0x20 && c != 0x7f) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the name has a control character: '", absl::CHexEscape(name), "'"));
  }
  if (!IsUtf8(name)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the name is not UTF-8: '", absl::CHexEscape(name), "'"));
  }
  return absl::OkStatus();
}

}  // namespace tdock
