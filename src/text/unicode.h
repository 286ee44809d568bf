// What Unicode says about characters, as far as tokenizers ask. The tables are utf8proc's. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/utf8.h"
#include "text/encode_budget.h"

namespace tdock::text {

// Unicode Standard Annex 15, by Unicode 9 (see unicode.cc).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// A character of a changed text, and how many of the old text's characters it stands for, as `tokenizers` counts them:
// 0 for one in place of one, n > 0 for one that is added, -n for one in place of one and the n that follow.
struct CharChange {
  char32_t code;
  int change;
};

// `text` is UTF-8 in all of these. Where characters are put into their canonical order, their changes go with them. The
// error of the budget's stop check.
absl::StatusOr<std::vector<CharChange>> Normalized(absl::string_view text, NormalForm form, EncodeBudget& budget);
// False only where Normalized() would change nothing.
bool MayNormalize(absl::string_view text, NormalForm form);

// The full mapping without context or language (SpecialCasing.txt).
absl::StatusOr<std::vector<CharChange>> Lowercased(absl::string_view text, EncodeBudget& budget);

bool IsWhiteSpace(char32_t code);  // the property White_Space
bool IsWordChar(char32_t code);    // \w of Unicode Technical Standard 18, annex C

void AppendUtf8(char32_t code, std::string& text);
inline size_t Utf8Bytes(char32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }

// The last character of a text that is not empty.
Utf8Char LastUtf8Char(absl::string_view text);
inline bool BeginsUtf8Char(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }
// How many characters the first `bytes` bytes of `text` hold.
int64_t CountUtf8Chars(absl::string_view text, size_t bytes);

}  // namespace tdock::text
