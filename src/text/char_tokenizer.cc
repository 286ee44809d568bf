#include "text/char_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/added_tokens.h"
#include "text/tokenizer_config.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status NotUtf8(int64_t position) {
  return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8 at position ", position));
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
    made->max_token_bytes_ = std::max(made->max_token_bytes_, token.text.size());
    if (!seen.insert(token.text).second) {
      return absl::InvalidArgumentError(absl::StrCat("the token ", Quoted(token.text), " comes twice"));
    }
    if (token.special) {
      made->special_ids_.push_back(static_cast<int32_t>(id));
      continue;
    }
    const std::optional<Utf8Char> single = FirstUtf8Char(token.text);
    if (!single || single->bytes != token.text.size()) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, ", ", Quoted(token.text), ", is not one character"));
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

std::optional<int32_t> CharTokenizer::SpecialAt(absl::string_view text) const {
  std::optional<int32_t> longest;
  size_t size = 0;
  for (const int32_t id : special_ids_) {
    const std::string& token = tokens_[static_cast<size_t>(id)].text;
    if (token.size() <= size || !absl::StartsWith(text, token)) continue;
    longest = id;
    size = token.size();
  }
  return longest;
}

// Calls sink(id, range) for each token.
template <class Sink>
absl::Status CharTokenizer::Encode(absl::string_view text, const EncodeOptions& options, Sink&& sink) const {
  TDOCK_RETURN_IF_ERROR(CheckSize(text, options));
  if (FindInvalidUtf8(text)) {
    TDOCK_RETURN_IF_ERROR(CheckRepairable(options));
    return Encode(ReplaceInvalidUtf8(text), options, sink);
  }
  const SpecialsAsText as_text(options);
  EncodeBudget budget(text.size(), options);
  TDOCK_RETURN_IF_ERROR(budget.Spend(1));
  size_t next_begin = 0, count = 0;
  for (size_t begin = 0; begin < text.size(); begin = next_begin) {
    TDOCK_RETURN_IF_ERROR(budget.Spend(1));
    if (++count > budget.max_tokens()) return budget.TooManyTokens();
    const absl::string_view rest = text.substr(begin);
    const std::optional<int32_t> special = as_text.everywhere() ? std::nullopt : SpecialAt(rest);
    const size_t size = special ? tokens_[static_cast<size_t>(*special)].text.size() : 0;
    if (special && as_text.Covers({begin, begin + size}) == SpecialsAsText::Covered::kNot) {
      const std::string& token = tokens_[static_cast<size_t>(*special)].text;
      if (options.spelled == SpelledSpecial::kRefuse) {
        return absl::InvalidArgumentError(absl::StrCat("the text contains the special token ", Quoted(token),
                                                       " at position ", CountUtf8Chars(text, begin)));
      }
      next_begin = begin + size;
      sink(*special, TextRange{begin, next_begin});
      continue;
    }
    const Utf8Char next = *FirstUtf8Char(rest);
    const auto found = ids_.find(next.code);
    if (found == ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the character ", Quoted(rest.substr(0, next.bytes)),
                                                     absl::StrFormat(" (U+%04X)", static_cast<uint32_t>(next.code)),
                                                     " at position ", CountUtf8Chars(text, begin),
                                                     " is not in the vocabulary"));
    }
    next_begin = begin + next.bytes;
    sink(found->second, TextRange{begin, next_begin});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> CharTokenizer::Encode(absl::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size(), options.max_tokens));
  TDOCK_RETURN_IF_ERROR(Encode(text, options, [&](int32_t id, TextRange) { ids.push_back(id); }));
  return ids;
}

absl::StatusOr<Encoding> CharTokenizer::EncodeWithRanges(absl::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  TDOCK_RETURN_IF_ERROR(Encode(text, options, [&](int32_t id, TextRange range) {
    encoding.ids.push_back(id);
    encoding.ranges.push_back(range);
  }));
  return encoding;
}

namespace {

// Every token is whole characters, so nothing is ever held back.
class CharStream final : public StreamDecoder {
 public:
  CharStream(const CharTokenizer& tokenizer, SpecialTokens special) : tokenizer_(tokenizer), special_(special) {}

  absl::StatusOr<std::string> Push(int32_t id) override {
    std::optional<std::string> token = tokenizer_.IdToToken(id);
    if (!token) return tokenizer_.NoToken(id);
    if (tokenizer_.IsSpecial(id) && special_ == SpecialTokens::kSkip) return "";
    return *std::move(token);
  }
  std::string Finish() override { return {}; }

 private:
  const CharTokenizer& tokenizer_;
  const SpecialTokens special_;
};

}  // namespace

std::unique_ptr<StreamDecoder> CharTokenizer::MakeStreamDecoder(SpecialTokens special) const {
  return std::make_unique<CharStream>(*this, special);
}

std::optional<int32_t> CharTokenizer::TokenToId(absl::string_view token) const {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].text == token) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

std::optional<std::string> CharTokenizer::IdToToken(int32_t id) const {
  if (!Has(id)) return std::nullopt;
  return tokens_[static_cast<size_t>(id)].text;
}

// Byte-pair encoding with no merges and nothing before it is one token per character.
absl::Status CharTokenizer::Save(Env& env, const std::string& folder) const {
  OrderedJson vocab = OrderedJson::object();
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const CharTokenizer::Token& token = tokens_[id];
    vocab[token.text] = id;
    if (!token.special) continue;
    added.push_back({{"id", id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  OrderedJson model = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocab)},
                       {"merges", OrderedJson::array()}};
  const OrderedJson tokenizer = {{"version", "1.0"},          {"truncation", nullptr},
                                 {"padding", nullptr},        {"added_tokens", std::move(added)},
                                 {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
                                 {"post_processor", nullptr}, {"decoder", {{"type", "Fuse"}}},
                                 {"model", std::move(model)}};
  const std::string& eos = tokens_[static_cast<size_t>(eos_id_)].text;
  const std::string& pad = tokens_[static_cast<size_t>(pad_id_)].text;
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"eos_token", eos},
                        {"pad_token", pad},
                        {"clean_up_tokenization_spaces", false}};
  if (max_length_) config["model_max_length"] = *max_length_;
  const OrderedJson specials = {{"eos_token", eos}, {"pad_token", pad}};
  return SaveFiles(env, folder,
                   {{"special_tokens_map.json", JsonText(specials, 2) + "\n"},
                    {"tokenizer_config.json", JsonText(config, 2) + "\n"},
                    {"tokenizer.json", JsonText(tokenizer, 2) + "\n"}});
}

}  // namespace tdock::text
