// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/env.h"

namespace tdock::text {

enum class SpecialTokens { kSkip, kKeep };

// Ids are 0 … vocab_size()-1. Special tokens (padding, end of text) are ids that no text encodes to. Immutable, and
// so thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`, with no special tokens added. InvalidArgument if `text` is not UTF-8, holds what the vocabulary
  // cannot express, or spells a special token: those are given as ids, never as text, so that text from outside
  // cannot forge one. The message says where; positions count characters from 0.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const = 0;

  // The text of `ids`. InvalidArgument, with the position, for an id outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                             SpecialTokens special = SpecialTokens::kSkip) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t pad_id() const = 0;

  // Writes the files that LoadTokenizer() and the AutoTokenizer of Python transformers open: tokenizer.json,
  // tokenizer_config.json and special_tokens_map.json. Creates the folder. Each file is replaced whole.
  virtual absl::Status Save(Env& env, const std::string& folder) const = 0;
};

// Reads tokenizer.json and tokenizer_config.json. What this project does not implement (a normalizer, a pre-tokenizer,
// merges, another kind of model…) is Unimplemented and named, never guessed at; damaged files are InvalidArgument.
// Neither file may be larger than 16 MiB.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(Env& env, const std::string& folder);

}  // namespace tdock::text
