// The tokenizer of a sentencepiece model, through its library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/added_tokens.h"
#include "text/sentencepiece_check.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tdock::text {

class SentencePieceModel;

// Ids are those of the library (and of Python's `sentencepiece`) for text in which special tokens are text. Special
// tokens are the model's control pieces. Where they are parsed, what lies between them is encoded by itself; where they
// are added, "add_bos_token" and "add_eos_token" of tokenizer_config.json say which.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `model` is what tokenizer.model holds. Errors of CheckSentencePieceModel(); InvalidArgument for what the library
  // refuses.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(absl::string_view model,
                                                                        const TokenizerConfig& config,
                                                                        SavedFiles files);
  ~SentencePieceTokenizer() override;

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const override;
  absl::StatusOr<Encoding> EncodeWithRanges(absl::string_view text, const EncodeOptions& options = {}) const override;
  std::unique_ptr<StreamDecoder> MakeStreamDecoder(SpecialTokens special = SpecialTokens::kSkip) const override;
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  std::optional<std::string> IdToToken(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  std::optional<size_t> max_token_bytes() const override { return spec_.max_piece_bytes; }
  int32_t vocab_size() const override;
  std::optional<int32_t> bos_id() const override { return named_.bos; }
  std::optional<int32_t> eos_id() const override { return named_.eos; }
  std::optional<int32_t> pad_id() const override { return named_.pad; }
  absl::Status Save(Env& env, const std::string& folder) const override;

 private:
  class Stream;

  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, SentencePieceSpec spec);

  absl::Status NameTokens(const TokenizerConfig& config);
  absl::StatusOr<Encoding> EncodeValid(absl::string_view text, const EncodeOptions& options, bool wants_ranges) const;
  absl::Status EncodePart(absl::string_view text, TextRange part, bool wants_ranges, Encoding& encoding) const;

  const std::unique_ptr<const SentencePieceModel> model_;
  const SentencePieceSpec spec_;
  std::vector<AddedToken> controls_;
  AddedTokenFinder finder_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<int32_t> before_, behind_;
  NamedTokens named_;
  SavedFiles files_;
};

}  // namespace tdock::text
