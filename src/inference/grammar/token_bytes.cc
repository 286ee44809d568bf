#include "inference/grammar/token_bytes.h"

#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

// The characters with which vocabularies of bytes spell them (GPT-2's encoder.py, bytes_to_unicode): printable ones
// stand for themselves, others for U+0100 and those after it.
absl::flat_hash_map<std::string, char> ByteSpellings() {
  absl::flat_hash_map<std::string, char> spellings;
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = shown ? byte : 256 + others++;
    std::string character;
    if (code < 0x80) {
      character += static_cast<char>(code);
    } else {
      character += static_cast<char>(0xC0 | (code >> 6));
      character += static_cast<char>(0x80 | (code & 0x3F));
    }
    spellings[character] = static_cast<char>(byte);
  }
  return spellings;
}

// The bytes of a spelling such as "Ġthe"; nullopt if it is of another kind.
std::optional<std::string> BytesOfSpelling(const std::string& spelling,
                                           const absl::flat_hash_map<std::string, char>& spellings) {
  std::string bytes;
  for (size_t i = 0; i < spelling.size();) {
    const size_t size = (spelling[i] & 0x80) == 0 ? 1 : 2;
    const auto found = spellings.find(spelling.substr(i, size));
    if (found == spellings.end()) return std::nullopt;
    bytes += found->second;
    i += size;
  }
  return bytes;
}

// The byte of "<0x0A>".
std::optional<std::string> ByteOfFallback(const std::string& spelling) {
  int byte = 0;
  if (spelling.size() != 6 || spelling.substr(0, 3) != "<0x" || spelling[5] != '>') return std::nullopt;
  if (!absl::SimpleHexAtoi(spelling.substr(3, 2), &byte)) return std::nullopt;
  return std::string(1, static_cast<char>(byte));
}

// A token before which no space is left out, since it is not the first then.
std::optional<int32_t> FindAnchor(const text::Tokenizer& tokenizer, std::string& text) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto decoded = tokenizer.Decode(std::span(&id, 1));
    if (!decoded.ok() || decoded->size() != 1 || (*decoded)[0] <= ' ' || (*decoded)[0] > '~') continue;
    text = *decoded;
    return id;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> TokenBytes(const text::Tokenizer& tokenizer) {
  const absl::flat_hash_map<std::string, char> spellings = ByteSpellings();
  std::string anchor_text;
  const std::optional<int32_t> anchor = FindAnchor(tokenizer, anchor_text);
  std::vector<std::string> all(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::optional<std::string> spelling = tokenizer.IdToToken(id);
    if (!spelling || tokenizer.IsSpecial(id)) continue;
    std::vector<int32_t> ids = {id};
    if (anchor) ids.insert(ids.begin(), *anchor);
    const auto decoded = tokenizer.Decode(ids);
    if (!decoded.ok() || decoded->compare(0, anchor_text.size(), anchor_text) != 0) continue;
    const std::string text = decoded->substr(anchor_text.size());
    std::string& bytes = all[static_cast<size_t>(id)];
    // A part of a character reads as U+FFFD: what it is, its spelling says.
    for (const auto& spelt : {BytesOfSpelling(*spelling, spellings), ByteOfFallback(*spelling)}) {
      if (bytes.empty() && spelt && ReplaceInvalidUtf8(*spelt) == text) bytes = *spelt;
    }
    if (bytes.empty() && text.find("\uFFFD") == std::string::npos) bytes = text;
  }
  return all;
}

std::vector<std::string> SpecialTexts(const text::Tokenizer& tokenizer) {
  std::vector<std::string> all(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    all[static_cast<size_t>(id)] = tokenizer.Decode(std::span(&id, 1), text::SpecialTokens::kKeep).value_or("");
  }
  return all;
}

}  // namespace tdock::inference
