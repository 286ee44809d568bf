#include "serve/token_texts.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "serve/grammar/token_bytes.h"

namespace tdock::serve {

const std::vector<std::string>& TokenTexts::AllBytes() const {
  std::call_once(found_, [this] { bytes_ = TokenBytes(tokenizer_); });
  return bytes_;
}

std::string TokenTexts::BytesOf(int32_t token) const {
  const std::vector<std::string>& all = AllBytes();
  const auto place = static_cast<size_t>(token);
  if (place < all.size() && !all[place].empty()) return all[place];
  return tokenizer_.Decode(std::span(&token, 1), text::SpecialTokens::kKeep).value_or("");
}

std::string TokenTexts::TextOf(int32_t token) const {
  std::string bytes = BytesOf(token);
  if (!FindInvalidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) absl::StrAppend(&text, "\\x", absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
  return text;
}

size_t TokenTexts::CharactersOf(int32_t token) const {
  const std::string bytes = BytesOf(token);
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace tdock::serve
