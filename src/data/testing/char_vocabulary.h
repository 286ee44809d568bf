// A tokenizer for tests, with a token for each character, and what is encoded with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/encode.h"
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

// The tokens that the loss counts.
inline std::vector<int32_t> CountedIds(const EncodedSample& sample) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.loss_mask[i] != 0) ids.push_back(sample.ids[i]);
  }
  return ids;
}

}  // namespace tdock::data
