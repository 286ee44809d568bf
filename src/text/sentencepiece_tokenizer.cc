#include "text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/sentencepiece_model.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using Kind = SentencePieceModel::Kind;

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr absl::string_view kSpace = "\xE2\x96\x81";        // U+2581, which stands for a space in pieces

// The library's cost for a byte of text, in units of EncodeBudget.
constexpr size_t kWorkOfByte = 4;

std::string_view Std(absl::string_view text) { return {text.data(), text.size()}; }

absl::Status LibraryError(absl::string_view error) {
  return absl::InvalidArgumentError(absl::StrCat("sentencepiece: ", error));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, SentencePieceSpec spec)
    : model_(std::move(model)), spec_(std::move(spec)) {}
SentencePieceTokenizer::~SentencePieceTokenizer() = default;

// As the library decodes: a piece that is a byte joins its neighbours to characters, and each byte that no character
// comes of is a U+FFFD.
class SentencePieceTokenizer::Stream final : public StreamDecoder {
 public:
  Stream(const SentencePieceTokenizer& tokenizer, SpecialTokens special) : tokenizer_(tokenizer), special_(special) {}

  absl::StatusOr<std::string> Push(int32_t id) override {
    if (id < 0 || id >= tokenizer_.vocab_size()) return tokenizer_.NoToken(id);
    const Kind kind = tokenizer_.model_->KindOf(id);
    std::string piece = tokenizer_.model_->Text(id);
    if (kind == Kind::kByte) {
      bytes_.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      return Given(Bytes(/*ended=*/false));
    }
    std::string text = Bytes(/*ended=*/true);
    any_text_ |= !text.empty();
    if (seen_first_space_ || any_text_) expects_space_ = false;
    seen_first_space_ = false;
    if (kind == Kind::kControl) {
      if (special_ == SpecialTokens::kKeep) text += piece;
    } else if (kind == Kind::kUnknown) {
      text += tokenizer_.spec_.unknown_text;
    } else {
      text += Spaced(piece);
    }
    return Given(std::move(text));
  }

  std::string Finish() override {
    std::string text = Bytes(/*ended=*/true);
    expects_space_ = true;
    seen_first_space_ = any_text_ = false;
    return text;
  }

 private:
  std::string Given(std::string text) {
    any_text_ |= !text.empty();
    return text;
  }

  std::string Spaced(absl::string_view piece) {
    const bool dropped = expects_space_ && tokenizer_.spec_.drops_first_space && absl::ConsumePrefix(&piece, kSpace);
    // Where the model removes extra spaces, all leading ones are dropped.
    seen_first_space_ = dropped && !tokenizer_.spec_.drops_leading_spaces;
    return absl::StrReplaceAll(piece, {{kSpace, " "}});
  }

  std::string Bytes(bool ended) {
    std::string text;
    absl::string_view rest = bytes_;
    while (!rest.empty()) {
      const std::optional<Utf8Char> next = FirstUtf8Char(rest);
      if (!next && !ended && UnfinishedUtf8(rest) == rest.size()) break;
      if (next) {
        text.append(rest.data(), next->bytes);
      } else {
        text.append(kReplacement.data(), kReplacement.size());
      }
      rest.remove_prefix(next ? next->bytes : 1);
    }
    bytes_ = std::string(rest);
    return text;
  }

  const SentencePieceTokenizer& tokenizer_;
  const SpecialTokens special_;
  std::string bytes_;  // that no character has come of yet
  bool expects_space_ = true, seen_first_space_ = false, any_text_ = false;
};

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(absl::string_view model,
                                                                                       const TokenizerConfig& config,
                                                                                       SavedFiles files) {
  TDOCK_ASSIGN_OR_RETURN(SentencePieceSpec spec, CheckSentencePieceModel(model));
  std::string error;
  auto loaded = SentencePieceModel::Load(Std(model), error);
  if (loaded == nullptr) return LibraryError(error);
  std::unique_ptr<SentencePieceTokenizer> made(new SentencePieceTokenizer(std::move(loaded), std::move(spec)));
  for (int32_t id = 0; id < made->vocab_size(); ++id) {
    const std::string text = made->model_->Text(id);
    made->ids_.emplace(text, id);
    if (made->model_->KindOf(id) != Kind::kControl) continue;
    made->controls_.push_back({.content = text, .id = id, .special = true});
  }
  for (const AddedToken& control : made->controls_) {
    TDOCK_RETURN_IF_ERROR(made->finder_.Add(control.content, control));
  }
  TDOCK_RETURN_IF_ERROR(made->NameTokens(config));
  made->files_ = std::move(files);
  return made;
}

absl::Status SentencePieceTokenizer::NameTokens(const TokenizerConfig& config) {
  TDOCK_ASSIGN_OR_RETURN(named_, config.Find([&](absl::string_view token) { return TokenToId(token); }));
  const auto of_model = [](int32_t id) { return id >= 0 ? std::optional(id) : std::nullopt; };
  if (!named_.bos) named_.bos = of_model(model_->bos_id());
  if (!named_.eos) named_.eos = of_model(model_->eos_id());
  if (!named_.pad) named_.pad = of_model(model_->pad_id());
  const struct {
    bool wanted;
    const char* key;
    std::optional<int32_t> id;
    std::vector<int32_t>& place;
  } added[] = {{config.add_bos, "add_bos_token", named_.bos, before_},
               {config.add_eos, "add_eos_token", named_.eos, behind_}};
  for (const auto& [wanted, key, id, place] : added) {
    if (!wanted) continue;
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: \"", key, "\" is true, but no such token is named"));
    }
    place.push_back(*id);
  }
  return absl::OkStatus();
}

absl::Status SentencePieceTokenizer::EncodePart(absl::string_view text, TextRange part, bool wants_ranges,
                                                Encoding& encoding) const {
  const std::string_view piece = Std(text.substr(part.begin, part.end - part.begin));
  std::string error;
  if (!wants_ranges) {
    const auto ids = model_->Encode(piece, error);
    if (!ids) return LibraryError(error);
    encoding.ids.insert(encoding.ids.end(), ids->begin(), ids->end());
    return absl::OkStatus();
  }
  const auto pieces = model_->EncodeWithRanges(piece, error);
  if (!pieces) return LibraryError(error);
  const size_t first = encoding.ids.size();
  for (const SentencePieceModel::Piece& found : *pieces) {
    encoding.ids.push_back(found.id);
    encoding.ranges.push_back({part.begin + found.begin, part.begin + found.end});
  }
  // The library gives the place of a character to the last of its bytes alone.
  for (size_t i = encoding.ids.size(); i-- > first + 1;) {
    TextRange& before = encoding.ranges[i - 1];
    const bool bytes =
        model_->KindOf(encoding.ids[i]) == Kind::kByte && model_->KindOf(encoding.ids[i - 1]) == Kind::kByte;
    if (bytes && before.begin == before.end && before.begin == encoding.ranges[i].begin) before = encoding.ranges[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<Encoding> SentencePieceTokenizer::EncodeValid(absl::string_view text, const EncodeOptions& options,
                                                             bool wants_ranges) const {
  TDOCK_RETURN_IF_ERROR(CheckSize(text, options));
  std::string repaired;
  if (FindInvalidUtf8(text)) {
    TDOCK_RETURN_IF_ERROR(CheckRepairable(options));
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
    TDOCK_RETURN_IF_ERROR(CheckSize(text, options));
  }
  EncodeBudget budget(text.size(), options);
  TDOCK_RETURN_IF_ERROR(budget.Spend(1));
  Encoding encoding;
  const auto add = [&](int32_t id, TextRange range) {
    encoding.ids.push_back(id);
    if (wants_ranges) encoding.ranges.push_back(range);
  };
  if (options.add_special_tokens) {
    for (const int32_t id : before_) add(id, {});
  }
  const SpecialsAsText as_text(options);
  const auto covered = [&](TextRange range) { return as_text.Covers(range); };
  TDOCK_ASSIGN_OR_RETURN(const auto parts, finder_.Divide(text, covered, budget));
  for (const AddedTokenFinder::Part& part : parts) {
    if (encoding.ids.size() > budget.max_tokens()) return budget.TooManyTokens();
    TDOCK_RETURN_IF_ERROR(budget.Spend(kWorkOfByte * (part.range.end - part.range.begin)));
    if (part.token == nullptr) {
      TDOCK_RETURN_IF_ERROR(EncodePart(text, part.range, wants_ranges, encoding));
      continue;
    }
    if (options.spelled == SpelledSpecial::kRefuse) {
      const absl::string_view before = text.substr(0, part.range.begin);
      return absl::InvalidArgumentError(absl::StrCat("the text contains the special token \"",
                                                     EscapeForMessage(part.token->content), "\" at position ",
                                                     std::count_if(before.begin(), before.end(), BeginsUtf8Char)));
    }
    add(part.token->id, part.range);
  }
  if (options.add_special_tokens) {
    for (const int32_t id : behind_) add(id, {});
  }
  if (encoding.ids.size() > budget.max_tokens()) return budget.TooManyTokens();
  return encoding;
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(absl::string_view text,
                                                                    const EncodeOptions& options) const {
  TDOCK_ASSIGN_OR_RETURN(Encoding encoding, EncodeValid(text, options, /*wants_ranges=*/false));
  return std::move(encoding.ids);
}

absl::StatusOr<Encoding> SentencePieceTokenizer::EncodeWithRanges(absl::string_view text,
                                                                  const EncodeOptions& options) const {
  return EncodeValid(text, options, /*wants_ranges=*/true);
}

std::unique_ptr<StreamDecoder> SentencePieceTokenizer::MakeStreamDecoder(SpecialTokens special) const {
  return std::make_unique<Stream>(*this, special);
}

std::optional<int32_t> SentencePieceTokenizer::TokenToId(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found != ids_.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<std::string> SentencePieceTokenizer::IdToToken(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return model_->Text(id);
}

bool SentencePieceTokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && model_->KindOf(id) == Kind::kControl;
}

int32_t SentencePieceTokenizer::vocab_size() const { return model_->size(); }

absl::Status SentencePieceTokenizer::Save(Env& env, const std::string& folder) const {
  return SaveFiles(env, folder, files_);
}

}  // namespace tdock::text
