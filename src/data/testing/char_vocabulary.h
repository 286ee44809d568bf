// A tokenizer for tests: a token for each character.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/char_tokenizer.h"

namespace tdock::data {

// The id of a printable ASCII character is its code less 31, of a line end 0; then come <|im_start|>, <|im_end|>,
// <pad> and <eos>.
inline std::unique_ptr<text::Tokenizer> AsciiTokenizer() {
  std::vector<text::CharTokenizer::Token> tokens = {{.text = "\n"}};
  for (char c = ' '; c <= '~'; ++c) tokens.push_back({.text = std::string(1, c)});
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<pad>", "<eos>"}) {
    tokens.push_back({.text = special, .special = true});
  }
  const auto size = static_cast<int32_t>(tokens.size());
  return *text::CharTokenizer::FromTokens(std::move(tokens), size - 1, size - 2);
}

}  // namespace tdock::data
