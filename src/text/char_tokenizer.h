// One token per character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/tokenizer.h"

namespace tdock::text {

class CharTokenizer final : public Tokenizer {
 public:
  struct Token {
    std::string text;
    bool special = false;
  };

  // Ids 0 … are the characters of `alphabet` in their order, then come <pad> and <eos>. `max_length` is the longest
  // text, in tokens, that the model is meant for; it is only passed on to the files. InvalidArgument if `alphabet` is
  // empty, not UTF-8, or has a character twice.
  static absl::StatusOr<std::unique_ptr<CharTokenizer>> Create(absl::string_view alphabet,
                                                               std::optional<int64_t> max_length = std::nullopt);

  // With any order of tokens: id i is tokens[i]. Each text must be different and not empty; one that is not special is
  // one character.
  static absl::StatusOr<std::unique_ptr<CharTokenizer>> FromTokens(std::vector<Token> tokens, int32_t eos_id,
                                                                   int32_t pad_id,
                                                                   std::optional<int64_t> max_length = std::nullopt);

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const override;
  absl::StatusOr<Encoding> EncodeWithRanges(absl::string_view text, const EncodeOptions& options = {}) const override;
  std::unique_ptr<StreamDecoder> MakeStreamDecoder(SpecialTokens special = SpecialTokens::kSkip) const override;
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  std::optional<std::string> IdToToken(int32_t id) const override;
  bool IsSpecial(int32_t id) const override { return Has(id) && tokens_[static_cast<size_t>(id)].special; }
  std::optional<size_t> max_token_bytes() const override { return max_token_bytes_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  std::optional<int32_t> pad_id() const override { return pad_id_; }
  absl::Status Save(Env& env, const std::string& folder) const override;

 private:
  CharTokenizer() = default;

  bool Has(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // The first special token that `text` begins with, by id.
  std::optional<int32_t> SpecialAt(absl::string_view text) const;
  template <class Sink>
  absl::Status Encode(absl::string_view text, const EncodeOptions& options, Sink&& sink) const;

  std::vector<Token> tokens_;
  absl::flat_hash_map<char32_t, int32_t> ids_;
  std::vector<int32_t> special_ids_;
  size_t max_token_bytes_ = 1;
  int32_t eos_id_ = 0;
  int32_t pad_id_ = 0;
  std::optional<int64_t> max_length_;
};

}  // namespace tdock::text
