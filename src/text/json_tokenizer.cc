#include "text/json_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/aligned_text.h"
#include "text/json_fields.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

// A text alone must come out as it is.
absl::Status CheckPadding(const Json& padding) {
  if (padding.is_null()) return absl::OkStatus();
  JsonFields fields(padding, "the padding");
  if (fields.Get("strategy") != "BatchLongest") return fields.Unsupported("strategy", "only BatchLongest is");
  if (!fields.Get("pad_to_multiple_of").is_null()) return fields.Unsupported("pad_to_multiple_of", "only null is");
  for (const char* of_batches : {"direction", "pad_id", "pad_type_id", "pad_token"}) fields.Get(of_batches);
  return fields.Finish();
}

}  // namespace

// One text on its way.
class JsonTokenizer::Run {
 public:
  Run(const JsonTokenizer& tokenizer, absl::string_view text, const EncodeOptions& options, bool wants_ranges)
      : tokenizer_(tokenizer),
        text_(text),
        options_(options),
        wants_ranges_(wants_ranges),
        wants_spaces_(wants_ranges && tokenizer.post_processor_.trims()),
        budget_(text.size(), options),
        as_text_(options),
        keeps_origins_(wants_ranges || tokenizer.pre_tokenizer_.needs_origins() || as_text_.depends_on_place()) {}

  absl::StatusOr<Encoding> Encode() {
    const auto as_text = [&](TextRange range) { return as_text_.Covers(range); };
    TDOCK_RETURN_IF_ERROR(budget_.Spend(1));
    TDOCK_ASSIGN_OR_RETURN(const auto parts, tokenizer_.raw_.Divide(text_, as_text, budget_));
    for (const AddedTokenFinder::Part& part : parts) {
      AlignedText found(text_, part.range, keeps_origins_);
      if (part.token != nullptr) {
        TDOCK_RETURN_IF_ERROR(AddToken(*part.token, found, {0, found.size()}));
      } else {
        TDOCK_RETURN_IF_ERROR(Normalize(std::move(found)));
      }
    }
    tokenizer_.post_processor_.Apply(text_, options_.add_special_tokens, wants_ranges_, std::move(spaces_), encoding_);
    TDOCK_RETURN_IF_ERROR(CheckCount());
    return std::move(encoding_);
  }

 private:
  absl::Status AddToken(const AddedToken& token, const AlignedText& text, TextRange range) {
    if (token.special && options_.spelled == SpelledSpecial::kRefuse) {
      const size_t at = Position(text, range.begin);
      return absl::InvalidArgumentError(absl::StrCat("the text contains the special token \"",
                                                     EscapeForMessage(token.content), "\" at position ",
                                                     CountUtf8Chars(text_, at)));
    }
    TDOCK_RETURN_IF_ERROR(budget_.Spend(range.end - range.begin));
    encoding_.ids.push_back(token.id);
    if (wants_ranges_) encoding_.ranges.push_back(text.OriginOf(range));
    if (wants_spaces_) spaces_.push_back(CountOuterSpaces(text.view(range)));
    return CheckCount();
  }

  absl::Status CheckCount() const {
    return encoding_.ids.size() > budget_.max_tokens() ? budget_.TooManyTokens() : absl::OkStatus();
  }

  // The byte of the text that was given.
  size_t Position(const AlignedText& text, size_t byte) const {
    return keeps_origins_ ? text.OriginOf({byte, byte + 1}).begin : 0;
  }

  absl::Status Normalize(AlignedText text) {
    if (tokenizer_.normalizer_ != nullptr) TDOCK_RETURN_IF_ERROR(tokenizer_.normalizer_->Apply(text, budget_));
    if (tokenizer_.normalized_.empty()) return Merge(std::move(text));
    const auto as_text = [&](TextRange range) {
      return as_text_.Covers(as_text_.depends_on_place() ? text.OriginOf(range) : range);
    };
    TDOCK_ASSIGN_OR_RETURN(const auto parts, tokenizer_.normalized_.Divide(text.view(), as_text, budget_));
    for (const AddedTokenFinder::Part& part : parts) {
      if (part.token != nullptr) {
        budget_.Keep(part.range.end - part.range.begin);
        TDOCK_RETURN_IF_ERROR(AddToken(*part.token, text, part.range));
      } else {
        TDOCK_RETURN_IF_ERROR(Merge(text.Part(part.range)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Merge(AlignedText text) {
    const size_t more = budget_.max_tokens() - encoding_.ids.size();
    TDOCK_ASSIGN_OR_RETURN(const Pieces pieces, tokenizer_.pre_tokenizer_.Apply(std::move(text), budget_, more));
    budget_.Keep(pieces.text.size());
    for (const TextRange piece : pieces.ranges) {
      const absl::string_view word = pieces.text.view(piece);
      TDOCK_RETURN_IF_ERROR(CheckWord(word.size()));
      TDOCK_ASSIGN_OR_RETURN(const auto unknown, tokenizer_.bpe_.Encode(word, budget_, symbols_));
      if (unknown) return Unknown(pieces.text, piece.begin + *unknown);
      size_t begin = piece.begin;
      for (const Bpe::Symbol& symbol : symbols_) {
        encoding_.ids.push_back(symbol.id);
        if (wants_ranges_) encoding_.ranges.push_back(pieces.text.OriginOf({begin, begin + symbol.bytes}));
        if (wants_spaces_) spaces_.push_back(tokenizer_.tokens_[static_cast<size_t>(symbol.id)].spaces);
        begin += symbol.bytes;
      }
      TDOCK_RETURN_IF_ERROR(CheckCount());
    }
    return absl::OkStatus();
  }

  // A word of which the tokens certainly exceed the limit is not merged.
  absl::Status CheckWord(size_t bytes) {
    TDOCK_RETURN_IF_ERROR(budget_.Spend(bytes));
    const std::optional<size_t>& max_bytes = tokenizer_.bpe_max_token_bytes_;
    const size_t left = budget_.max_tokens() - encoding_.ids.size();
    if (!max_bytes || bytes <= left || (bytes - 1) / *max_bytes < left) return absl::OkStatus();
    return budget_.TooManyTokens();
  }

  absl::Status Unknown(const AlignedText& text, size_t byte) const {
    while (!BeginsUtf8Char(text.view()[byte])) --byte;
    const Utf8Char character = *FirstUtf8Char(text.view().substr(byte));
    return absl::InvalidArgumentError(
        absl::StrCat("the character \"", EscapeForMessage(text.view().substr(byte, character.bytes)),
                     absl::StrFormat("\" (U+%04X)", static_cast<uint32_t>(character.code)), " at position ",
                     CountUtf8Chars(text_, Position(text, byte)), " is not in the vocabulary"));
  }

  const JsonTokenizer& tokenizer_;
  const absl::string_view text_;
  const EncodeOptions& options_;
  const bool wants_ranges_, wants_spaces_;
  EncodeBudget budget_;
  const SpecialsAsText as_text_;
  const bool keeps_origins_;
  std::vector<Bpe::Symbol> symbols_;
  std::vector<OuterSpaces> spaces_;
  Encoding encoding_;
};

class JsonTokenizer::Stream final : public StreamDecoder {
 public:
  Stream(const JsonTokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(tokenizer), special_(special), first_stage_(tokenizer.decoder_.Begin(text_)) {}

  absl::StatusOr<std::string> Push(int32_t id) override {
    if (!tokenizer_.Has(id)) return tokenizer_.NoToken(id);
    const Token& token = tokenizer_.tokens_[static_cast<size_t>(id)];
    if (!token.special || special_ == SpecialTokens::kKeep) first_stage_->Push(token.decoded, true);
    return std::exchange(text_, {});
  }

  std::string Finish() override {
    first_stage_->End();
    return std::exchange(text_, {});
  }

 private:
  const JsonTokenizer& tokenizer_;
  const SpecialTokens special_;
  std::string text_;  // what has come out of the last stage
  const std::unique_ptr<TokenDecoder::Stage> first_stage_;
};

absl::StatusOr<std::unique_ptr<JsonTokenizer>> JsonTokenizer::Create(const Json& json, const TokenizerConfig& config,
                                                                     SavedFiles files) {
  JsonFields fields(json, "the tokenizer");
  if (const Json& version = fields.Get("version"); !version.is_null() && version != "1.0") {
    return fields.Unsupported("version", "only 1.0 is");
  }
  if (!fields.Get("truncation").is_null()) return fields.Unsupported("truncation", "only null is");
  TDOCK_RETURN_IF_ERROR(CheckPadding(fields.Get("padding")));
  TDOCK_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Read(fields.Get("pre_tokenizer")));
  TDOCK_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Read(fields.Get("model"), pre_tokenizer.byte_level()));
  std::unique_ptr<JsonTokenizer> made(new JsonTokenizer(std::move(bpe), std::move(pre_tokenizer)));
  TDOCK_ASSIGN_OR_RETURN(made->normalizer_, ReadNormalizer(fields.Get("normalizer")));
  TDOCK_RETURN_IF_ERROR(made->TryExamples());
  TDOCK_RETURN_IF_ERROR(made->ReadTokens(fields.Get("added_tokens")));
  made->bpe_max_token_bytes_ = made->bpe_.max_token_bytes();
  made->max_token_bytes_ = made->FindMaxTokenBytes();
  const auto is_token = [&](int32_t id) { return made->Has(id); };
  TDOCK_ASSIGN_OR_RETURN(made->post_processor_, PostProcessor::Read(fields.Get("post_processor"), is_token));
  TDOCK_ASSIGN_OR_RETURN(made->decoder_, TokenDecoder::Read(fields.Get("decoder")));
  TDOCK_RETURN_IF_ERROR(fields.Finish());
  TDOCK_ASSIGN_OR_RETURN(made->named_, config.Find([&](absl::string_view token) { return made->TokenToId(token); }));
  made->files_ = std::move(files);
  return made;
}

absl::Status JsonTokenizer::ReadTokens(const Json& added) {
  const auto model_id = [&](absl::string_view token) { return bpe_.Find(token); };
  TDOCK_ASSIGN_OR_RETURN(added_, ReadAddedTokens(added, model_id, bpe_.size()));
  for (size_t id = 0; id < bpe_.tokens().size(); ++id) {
    const std::optional<std::string>& token = bpe_.tokens()[id];
    tokens_.push_back(
        {.text = token.value_or(""), .decoded = token.value_or(""), .spaces = {}, .exists = token.has_value()});
  }
  for (const AddedToken& token : added_) {
    const auto place = static_cast<size_t>(token.id);
    if (tokens_.size() <= place) tokens_.resize(place + 1);
    tokens_[place] = {
        .text = token.content, .decoded = token.content, .spaces = {}, .exists = true, .special = token.special};
    added_ids_.emplace(token.content, token.id);
  }
  for (Token& token : tokens_) token.spaces = CountOuterSpaces(token.text);
  // Where two become the same, special ones count first.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : added_) {
      if (token.special != special) continue;
      if (!token.normalized) {
        TDOCK_RETURN_IF_ERROR(raw_.Add(token.content, token));
        continue;
      }
      std::string& decoded = tokens_[static_cast<size_t>(token.id)].decoded;
      TDOCK_ASSIGN_OR_RETURN(decoded, NormalizedContent(token));
      TDOCK_RETURN_IF_ERROR(normalized_.Add(decoded, token));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonTokenizer::NormalizedContent(const AddedToken& token) const {
  const auto shown = [&] { return absl::StrCat("the added token ", ShownJson(Json(token.content))); };
  AlignedText content(token.content, {0, token.content.size()}, false);
  EncodeBudget budget(token.content.size());
  if (normalizer_ != nullptr) TDOCK_RETURN_IF_ERROR(Annotate(normalizer_->Apply(content, budget), shown()));
  if (content.size() > 0) return std::string(content.view());
  return absl::InvalidArgumentError(absl::StrCat("nothing is left of ", shown(), " by the normalizer"));
}

// Components that make far too much of a short text are refused before there is one.
absl::Status JsonTokenizer::TryExamples() const {
  std::vector<std::string> examples = {"a"};
  if (normalizer_ != nullptr) normalizer_->AddExamples(examples);
  for (const std::string& example : examples) {
    AlignedText text(example, {0, example.size()}, pre_tokenizer_.needs_origins());
    EncodeBudget budget(example.size());
    if (normalizer_ != nullptr) TDOCK_RETURN_IF_ERROR(normalizer_->Apply(text, budget));
    TDOCK_RETURN_IF_ERROR(pre_tokenizer_.Apply(std::move(text), budget, budget.max_tokens()).status());
  }
  return absl::OkStatus();
}

std::optional<size_t> JsonTokenizer::FindMaxTokenBytes() const {
  const std::optional<size_t> shrink = normalizer_ == nullptr ? size_t{1} : normalizer_->max_shrink();
  if (!shrink || !bpe_max_token_bytes_ || pre_tokenizer_.drops()) return std::nullopt;
  size_t max_bytes = *bpe_max_token_bytes_ * *shrink;
  for (const AddedToken& token : added_) {
    if (token.lstrip || token.rstrip) return std::nullopt;  // any amount of white space
    const std::string& decoded = tokens_[static_cast<size_t>(token.id)].decoded;
    max_bytes = std::max(max_bytes, token.normalized ? decoded.size() * *shrink : token.content.size());
  }
  return max_bytes;
}

absl::StatusOr<Encoding> JsonTokenizer::EncodeValid(absl::string_view text, const EncodeOptions& options,
                                                    bool wants_ranges) const {
  TDOCK_RETURN_IF_ERROR(CheckSize(text, options));
  std::string repaired;
  if (FindInvalidUtf8(text)) {
    TDOCK_RETURN_IF_ERROR(CheckRepairable(options));
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
    TDOCK_RETURN_IF_ERROR(CheckSize(text, options));
  }
  return Run(*this, text, options, wants_ranges).Encode();
}

absl::StatusOr<std::vector<int32_t>> JsonTokenizer::Encode(absl::string_view text, const EncodeOptions& options) const {
  absl::StatusOr<Encoding> encoding = EncodeValid(text, options, /*wants_ranges=*/false);
  // Where in the text it failed is only known where origins are kept.
  if (absl::IsInvalidArgument(encoding.status())) encoding = EncodeValid(text, options, /*wants_ranges=*/true);
  if (!encoding.ok()) return encoding.status();
  return std::move(encoding->ids);
}

absl::StatusOr<Encoding> JsonTokenizer::EncodeWithRanges(absl::string_view text, const EncodeOptions& options) const {
  return EncodeValid(text, options, /*wants_ranges=*/true);
}

std::unique_ptr<StreamDecoder> JsonTokenizer::MakeStreamDecoder(SpecialTokens special) const {
  return std::make_unique<Stream>(*this, special);
}

std::optional<int32_t> JsonTokenizer::TokenToId(absl::string_view token) const {
  const auto found = added_ids_.find(token);
  return found != added_ids_.end() ? std::optional(found->second) : bpe_.Find(token);
}

std::optional<std::string> JsonTokenizer::IdToToken(int32_t id) const {
  if (!Has(id)) return std::nullopt;
  return tokens_[static_cast<size_t>(id)].text;
}

bool JsonTokenizer::IsSpecial(int32_t id) const { return Has(id) && tokens_[static_cast<size_t>(id)].special; }

absl::Status JsonTokenizer::Save(Env& env, const std::string& folder) const { return SaveFiles(env, folder, files_); }

}  // namespace tdock::text
