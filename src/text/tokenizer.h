// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace tdock::text {

// What decoding does with special tokens (padding, end of text, the borders of a conversation's turns).
enum class SpecialTokens { kSkip, kKeep };

// What encoding does where the text spells a special token, such as "<|im_end|>".
enum class SpelledSpecial {
  kRefuse,  // InvalidArgument with the place: text from outside cannot forge one
  kParse,   // it is the special token, as in the Python package `tokenizers`
  kAsText,  // it is text like any other, as with that package's encode_special_tokens
};

struct EncodeOptions {
  SpelledSpecial spelled = SpelledSpecial::kRefuse;
  // Puts around the text what the tokenizer's post-processor does, such as a token that begins a text.
  bool add_special_tokens = false;
};

// Bytes [begin, end) of the text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;

  bool operator==(const TextRange&) const = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  // Where each id comes from. The borders are those of whole characters, so that two tokens share a range where a
  // character is split between them; an added special token has the range [0, 0). The same as the offsets that
  // `tokenizers` gives, which count characters. In text that is not UTF-8, they are places in ReplaceInvalidUtf8(text).
  std::vector<TextRange> ranges;
};

// Turns ids into text as they come. What the calls return, put together, is Decode() of all ids; a character whose
// bytes lie in several tokens is returned with the last of them. Not thread-safe; outlived by its tokenizer.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;

  // The text that is certain once this id is known; may be empty. InvalidArgument for an id outside the vocabulary,
  // which changes nothing.
  virtual absl::StatusOr<std::string> Push(int32_t id) = 0;

  // What was held back: bytes that no character came of are U+FFFD. After this, the decoder begins anew.
  virtual std::string Finish() = 0;
};

// Ids are 0 … vocab_size()-1, not all of which need to be tokens. Thread-safe; nothing that a call can see changes.
//
// Text that is not UTF-8 is read as ReplaceInvalidUtf8() (core/base/utf8.h) would mend it, which is what Python's
// bytes.decode(errors="replace") does.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // InvalidArgument for text that spells a special token where that is refused, that holds what the vocabulary cannot
  // express, or that exceeds kMaxTextBytes. The message says where; positions count characters from 0.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                                      const EncodeOptions& options = {}) const = 0;
  virtual absl::StatusOr<Encoding> EncodeWithRanges(absl::string_view text,
                                                    const EncodeOptions& options = {}) const = 0;

  // The text of `ids`. InvalidArgument, with the position, for an id that is no token.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, SpecialTokens special = SpecialTokens::kSkip) const;
  virtual std::unique_ptr<StreamDecoder> MakeStreamDecoder(SpecialTokens special = SpecialTokens::kSkip) const = 0;

  // A token as the vocabulary spells it, which for bytes is not their text ("Ġthe", "▁the", "<0x0A>").
  virtual std::optional<int32_t> TokenToId(absl::string_view token) const = 0;
  virtual std::optional<std::string> IdToToken(int32_t id) const = 0;
  // Whether the id is a special token, which SpecialTokens::kSkip leaves out.
  virtual bool IsSpecial(int32_t id) const = 0;

  virtual int32_t vocab_size() const = 0;  // the highest id, and one
  // Those that the model's files name.
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;

  // Writes the files that LoadTokenizer() and the AutoTokenizer of Python transformers open: those that this one was
  // read from, or tokenizer.json, tokenizer_config.json and special_tokens_map.json. Creates the folder. Each file is
  // replaced whole.
  virtual absl::Status Save(Env& env, const std::string& folder) const = 0;

  // The error for an id that is no token.
  absl::Status NoToken(int32_t id) const;
};

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Reads tokenizer.json, or where there is none the sentencepiece model tokenizer.model, and beside either
// tokenizer_config.json and special_tokens_map.json where there are any, which name the special tokens. A component or
// a value that this project does not implement (another kind of model, a normalizer, a token that only they name…) is
// Unimplemented and named, never guessed at; damaged files are InvalidArgument. No file may be larger than 64 MiB.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(Env& env, const std::string& folder);

}  // namespace tdock::text
