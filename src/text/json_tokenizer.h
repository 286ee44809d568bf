// The tokenizer that a tokenizer.json describes: byte-pair encoding with what comes before and after it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/json_text.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tdock::text {

//   text ─► raw added tokens ─► normalizer ─► normalised added tokens ─► pre-tokenizer ─► BPE ─► post-processor
//
// Each step only sees what the tokens found before have left over.
//
// Decoding without special tokens leaves out every one, and IdToToken() spells each as the file does. In `tokenizers`,
// one that is normalised goes by its normalised spelling in both, which is then not known to be special.
class JsonTokenizer final : public Tokenizer {
 public:
  // `json` is a parsed tokenizer.json, `config` what tokenizer_config.json says. `files` is what Save() writes.
  // Unimplemented for a component or a value that is not implemented, InvalidArgument for damage, and for components
  // that together make far more of a short text than it is (EncodeBudget::CheckGrowth).
  //
  // "padding" may say BatchLongest without "pad_to_multiple_of", which leaves a text alone as it is. "truncation" must
  // be null: a text is never cut without being asked to.
  static absl::StatusOr<std::unique_ptr<JsonTokenizer>> Create(const nlohmann::json& json,
                                                               const TokenizerConfig& config, SavedFiles files);

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const override;
  absl::StatusOr<Encoding> EncodeWithRanges(absl::string_view text, const EncodeOptions& options = {}) const override;
  std::unique_ptr<StreamDecoder> MakeStreamDecoder(SpecialTokens special = SpecialTokens::kSkip) const override;
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  std::optional<std::string> IdToToken(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  std::optional<size_t> max_token_bytes() const override { return max_token_bytes_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const override { return named_.bos; }
  std::optional<int32_t> eos_id() const override { return named_.eos; }
  std::optional<int32_t> pad_id() const override { return named_.pad; }
  absl::Status Save(Env& env, const std::string& folder) const override;

 private:
  class Stream;
  class Run;

  // A token by its id.
  struct Token {
    std::string text;     // as the file spells it
    std::string decoded;  // as the decoder gets it
    OuterSpaces spaces;
    bool exists = false;
    bool special = false;
  };

  JsonTokenizer(Bpe bpe, PreTokenizer pre_tokenizer) : bpe_(std::move(bpe)), pre_tokenizer_(std::move(pre_tokenizer)) {}

  absl::Status ReadTokens(const nlohmann::json& added);
  absl::StatusOr<std::string> NormalizedContent(const AddedToken& token) const;
  absl::Status TryExamples() const;
  std::optional<size_t> FindMaxTokenBytes() const;
  absl::StatusOr<Encoding> EncodeValid(absl::string_view text, const EncodeOptions& options, bool wants_ranges) const;
  bool Has(int32_t id) const { return id >= 0 && id < vocab_size() && tokens_[static_cast<size_t>(id)].exists; }

  const Bpe bpe_;
  const PreTokenizer pre_tokenizer_;
  std::unique_ptr<Normalizer> normalizer_;  // null: none
  PostProcessor post_processor_;
  TokenDecoder decoder_;
  std::vector<Token> tokens_;  // by id
  std::vector<AddedToken> added_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  AddedTokenFinder raw_, normalized_;
  std::optional<size_t> bpe_max_token_bytes_, max_token_bytes_;
  NamedTokens named_;
  SavedFiles files_;
};

}  // namespace tdock::text
