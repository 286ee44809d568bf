// How single tokens are shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "text/tokenizer.h"

namespace tdock::serve {

// Thread-safe. The bytes of a large vocabulary are found when the first of them is asked for.
class TokenTexts {
 public:
  // The tokenizer must outlive it.
  explicit TokenTexts(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the token adds to a text that has begun: a space before a word included, and of a part of a character those
  // bytes. Of a special token its name.
  std::string BytesOf(int32_t token) const TDOCK_EXCLUDES(mu_);
  // The same as UTF-8: a part of a character as OpenAI shows it, "bytes:\\xe2\\x82".
  std::string TextOf(int32_t token) const TDOCK_EXCLUDES(mu_);
  // The characters that begin in it.
  size_t CharactersOf(int32_t token) const TDOCK_EXCLUDES(mu_);

 private:
  const text::Tokenizer& tokenizer_;
  mutable Mutex mu_;
  mutable std::vector<std::string> bytes_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::serve
