#include "text/char_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/tokenizer_files.h"

namespace tdock::text {
namespace {

std::string Shown(absl::string_view text) { return absl::StrCat("\"", EscapeForMessage(text), "\""); }

absl::Status NotUtf8(int64_t position) {
  return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8 at position ", position));
}

// How many characters the first `bytes` bytes of valid UTF-8 hold.
int64_t CountChars(absl::string_view text, size_t bytes) {
  return std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CharTokenizer>> CharTokenizer::Create(absl::string_view alphabet,
                                                                     std::optional<int64_t> max_length) {
  if (alphabet.empty()) return absl::InvalidArgumentError("the alphabet is empty");
  std::vector<Token> tokens;
  for (absl::string_view rest = alphabet; !rest.empty();) {
    const std::optional<Utf8Char> next = FirstUtf8Char(rest);
    if (!next) return NotUtf8(static_cast<int64_t>(tokens.size()));
    tokens.push_back({.text = std::string(rest.substr(0, next->bytes)), .special = false});
    rest.remove_prefix(next->bytes);
  }
  const auto pad_id = static_cast<int32_t>(tokens.size());
  tokens.push_back({.text = "<pad>", .special = true});
  tokens.push_back({.text = "<eos>", .special = true});
  return FromTokens(std::move(tokens), pad_id + 1, pad_id, max_length);
}

absl::StatusOr<std::unique_ptr<CharTokenizer>> CharTokenizer::FromTokens(std::vector<Token> tokens, int32_t eos_id,
                                                                         int32_t pad_id,
                                                                         std::optional<int64_t> max_length) {
  if (max_length && *max_length < 1) return absl::InvalidArgumentError("the longest text must be at least one token");
  std::unique_ptr<CharTokenizer> made(new CharTokenizer);
  absl::flat_hash_set<absl::string_view> seen;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Token& token = tokens[id];
    if (token.text.empty()) return absl::InvalidArgumentError(absl::StrCat("token ", id, " is empty"));
    if (!seen.insert(token.text).second) {
      return absl::InvalidArgumentError(absl::StrCat("the token ", Shown(token.text), " comes twice"));
    }
    if (token.special) continue;
    const std::optional<Utf8Char> single = FirstUtf8Char(token.text);
    if (!single || single->bytes != token.text.size()) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, ", ", Shown(token.text), ", is not one character"));
    }
    made->ids_[single->code] = static_cast<int32_t>(id);
  }
  for (const int32_t id : {eos_id, pad_id}) {
    if (id < 0 || static_cast<size_t>(id) >= tokens.size() || !tokens[static_cast<size_t>(id)].special) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " is not a special token"));
    }
  }
  made->tokens_ = std::move(tokens);
  made->eos_id_ = eos_id;
  made->pad_id_ = pad_id;
  made->max_length_ = max_length;
  return made;
}

absl::StatusOr<std::vector<int32_t>> CharTokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const std::optional<Utf8Char> next = FirstUtf8Char(text.substr(offset));
    if (!next) return NotUtf8(static_cast<int64_t>(ids.size()));
    const auto found = ids_.find(next->code);
    if (found == ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the character ", Shown(text.substr(offset, next->bytes)),
                                                     absl::StrFormat(" (U+%04X)", static_cast<uint32_t>(next->code)),
                                                     " at position ", ids.size(), " is not in the vocabulary"));
    }
    ids.push_back(found->second);
    offset += next->bytes;
  }
  for (const Token& token : tokens_) {
    const size_t at = token.special ? text.find(token.text) : absl::string_view::npos;
    if (at == absl::string_view::npos) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the text spells the special token ", Shown(token.text), " at position ", CountChars(text, at)));
  }
  return ids;
}

absl::StatusOr<std::string> CharTokenizer::Decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", ids[i], " at position ", i, " is outside the vocabulary of ", vocab_size()));
    }
    const Token& token = tokens_[static_cast<size_t>(ids[i])];
    if (!token.special || special == SpecialTokens::kKeep) text += token.text;
  }
  return text;
}

absl::Status CharTokenizer::Save(Env& env, const std::string& folder) const {
  const TokenizerFiles files =
      WriteTokenizerFiles({.tokens = tokens_, .eos_id = eos_id_, .pad_id = pad_id_, .max_length = max_length_});
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  TDOCK_RETURN_IF_ERROR(
      WriteFileAtomically(env, JoinPath(folder, "special_tokens_map.json"), files.special_tokens_map));
  TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, "tokenizer_config.json"), files.tokenizer_config));
  return WriteFileAtomically(env, JoinPath(folder, "tokenizer.json"), files.tokenizer);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(Env& env, const std::string& folder) {
  // Mapped, so that a huge file is refused before it is read.
  const std::string path = JoinPath(folder, "tokenizer.json");
  const std::string config_path = JoinPath(folder, "tokenizer_config.json");
  TDOCK_ASSIGN_OR_RETURN(const auto file, env.MapFile(path));
  TDOCK_ASSIGN_OR_RETURN(const auto config_file, env.MapFile(config_path));
  const auto text = [](const MappedFile& mapped) {
    return absl::string_view(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  };
  absl::StatusOr<TokenizerParts> parts = ReadTokenizerFiles(text(*file), text(*config_file));
  if (!parts.ok()) return Annotate(parts.status(), folder);
  absl::StatusOr<std::unique_ptr<CharTokenizer>> made =
      CharTokenizer::FromTokens(std::move(parts->tokens), parts->eos_id, parts->pad_id, parts->max_length);
  if (!made.ok()) return Annotate(made.status(), path);
  return *std::move(made);
}

}  // namespace tdock::text
