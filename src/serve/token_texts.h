// How single tokens are shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tdock::serve {

// Thread-safe. The bytes of a large vocabulary are found when the first of them is asked for.
class TokenTexts {
 public:
  // The tokenizer must outlive it.
  explicit TokenTexts(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the token adds to a text that has begun: a space before a word included, and of a part of a character those
  // bytes. Of a special token its name.
  std::string BytesOf(int32_t token) const;
  // The same as UTF-8: a part of a character as OpenAI shows it, "bytes:\\xe2\\x82".
  std::string TextOf(int32_t token) const;
  // The characters that begin in it.
  size_t CharactersOf(int32_t token) const;

  // The bytes of all tokens: see TokenBytes().
  const std::vector<std::string>& AllBytes() const;

 private:
  const text::Tokenizer& tokenizer_;
  mutable std::once_flag found_;
  mutable std::vector<std::string> bytes_;
};

}  // namespace tdock::serve
