// Conversions between text and token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock::text {

// What decoding does with special tokens (padding, end of text, the borders of a conversation's turns).
enum class SpecialTokens { kSkip, kKeep };

// What encoding does if the text contains a special token, such as "<|im_end|>".
enum class SpelledSpecial {
  kRefuse,  // InvalidArgument with the position: untrusted text cannot forge one
  kParse,   // it is the special token, as in the Python package `tokenizers`
  kAsText,  // it is text like any other, as with that package's encode_special_tokens
};

// Bytes [begin, end) of the text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;

  bool operator==(const TextRange&) const = default;
};

struct EncodeOptions {
  SpelledSpecial spelled = SpelledSpecial::kRefuse;
  // Adds what the tokenizer's post-processor adds, such as a beginning-of-text token.
  bool add_special_tokens = false;
  // Where a byte of these is part of what spells a special token, that is text like any other, whatever `spelled` says.
  // In the order of the text, apart from one another; only for text that is UTF-8.
  std::span<const TextRange> as_text = {};
  // Encoding ends with OutOfRange as soon as it is certain that there are more tokens, those that are added included.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  // Polled at the beginning and every few milliseconds of work; its error is returned as it is. A sentencepiece model
  // is the exception: its library encodes all that lies between two special tokens at once.
  StopCheck stop = {};
};

struct Encoding {
  std::vector<int32_t> ids;
  // The origin of each id, in whole characters, so that two tokens share a range if a character is split between them;
  // an added special token has the range [0, 0). The same as the offsets of `tokenizers`, which count characters. For
  // text that is not UTF-8, these are positions in ReplaceInvalidUtf8(text).
  std::vector<TextRange> ranges;
};

// Turns ids into text as they arrive. The concatenated results are Decode() of all ids; a character whose bytes are
// spread over several tokens is returned with the last of them. Not thread-safe; its tokenizer must outlive it.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;

  // The text that is certain once this id is known; may be empty. InvalidArgument, without any effect, for an id
  // outside the vocabulary.
  virtual absl::StatusOr<std::string> Push(int32_t id) = 0;

  // The rest: bytes that do not form a character become U+FFFD. This resets the decoder.
  virtual std::string Finish() = 0;
};

// Ids are 0 … vocab_size()-1, not all of which need to be tokens. Thread-safe; calls have no visible side effects.
//
// Text that is not UTF-8 is read as if ReplaceInvalidUtf8() (core/base/utf8.h) had repaired it, which does what
// Python's bytes.decode(errors="replace") does.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // InvalidArgument for text that contains a special token if that is refused, that the vocabulary cannot express, that
  // is not UTF-8 where EncodeOptions::as_text is given, that exceeds kMaxTextBytes, or of which the tokenizer's own
  // normalizers and pre-tokenizers make much more than it is: more than 16 times its bytes and 4096. The message says
  // where; positions count characters from 0. OutOfRange for more than EncodeOptions::max_tokens tokens: text longer
  // than these can stand for (max_token_bytes()) is refused unread, and otherwise encoding ends while it counts. The
  // time grows with the length of the text alone.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                                      const EncodeOptions& options = {}) const = 0;
  virtual absl::StatusOr<Encoding> EncodeWithRanges(absl::string_view text,
                                                    const EncodeOptions& options = {}) const = 0;

  // The text of `ids`. InvalidArgument, with the position, for an id that is not a token.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, SpecialTokens special = SpecialTokens::kSkip) const;
  virtual std::unique_ptr<StreamDecoder> MakeStreamDecoder(SpecialTokens special = SpecialTokens::kSkip) const = 0;

  // A token as the vocabulary spells it, which for bytes is not their text ("Ġthe", "▁the", "<0x0A>").
  virtual std::optional<int32_t> TokenToId(absl::string_view token) const = 0;
  virtual std::optional<std::string> IdToToken(int32_t id) const = 0;
  // Whether the id is a special token, which SpecialTokens::kSkip leaves out.
  virtual bool IsSpecial(int32_t id) const = 0;

  // The most bytes of text that one token can stand for; nullopt: there is no bound, as where a normalizer removes
  // text, or where the token for unknown characters stands for any number of them.
  virtual std::optional<size_t> max_token_bytes() const = 0;

  virtual int32_t vocab_size() const = 0;  // the highest id plus one
  // Those that the model's files name.
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;

  // Writes the files that LoadTokenizer() and the AutoTokenizer of Python's transformers read: those that this one was
  // read from, or tokenizer.json, tokenizer_config.json and special_tokens_map.json. Creates the folder. Each file is
  // replaced atomically.
  virtual absl::Status Save(Env& env, const std::string& folder) const = 0;

  // The error for an id that is not a token.
  absl::Status NoToken(int32_t id) const;

 protected:
  // Checks what is known before any work: InvalidArgument for text longer than kMaxTextBytes, OutOfRange for text that
  // certainly has more than options.max_tokens tokens.
  absl::Status CheckSize(absl::string_view text, const EncodeOptions& options) const;
  // Whether text that is not UTF-8 may be repaired, which moves the places in it.
  static absl::Status CheckRepairable(const EncodeOptions& options);
};

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;
// Maximum length of one token in a vocabulary. Real ones have a few hundred bytes.
inline constexpr size_t kMaxTokenBytes = size_t{1} << 14;

// Reads tokenizer.json or, if there is none, the sentencepiece model tokenizer.model, together with
// tokenizer_config.json and special_tokens_map.json if they exist, which name the special tokens. A component or value
// that this project does not implement (another kind of model, a normalizer, a token that only they name…) is
// Unimplemented, with its name, and never guessed at; damaged files are InvalidArgument, and so are tokenizers that
// make much more of a text than it is. No file may be larger than 64 MiB.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(Env& env, const std::string& folder);

}  // namespace tdock::text
