// The tokens of a model, as grammars see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace tdock::inference {

// Tokens in a tree by their bytes, so that those which begin alike are looked at together. Immutable.
class Vocabulary {
 public:
  // A byte of tokens. Its subtree, which are the tokens that go on with it, lies behind it and ends at `next`.
  struct Node {
    uint32_t next = 0;
    uint32_t first_token = 0, tokens = 0;  // those that end with this byte, in sorted_tokens()
    uint16_t depth = 0;                    // of the first bytes 0
    uint8_t byte = 0;
  };

  // `token_bytes`: see TokenBytes(). `special_texts`: of each special token its text, of others nothing. Texts have no
  // end token.
  Vocabulary(std::vector<std::string> token_bytes, std::vector<std::string> special_texts,
             std::span<const int32_t> end_tokens);
  Vocabulary(const text::Tokenizer& tokenizer, std::span<const int32_t> end_tokens);

  size_t size() const { return token_bytes_.size(); }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> TokensAt(const Node& node) const {
    return std::span(sorted_tokens_).subspan(node.first_token, node.tokens);
  }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  // With their texts.
  const std::vector<std::pair<std::string, int32_t>>& special_tokens() const { return special_tokens_; }
  // Empty if `token` is special, an end token, or unknown.
  const std::string& BytesOf(int32_t token) const;
  // Empty if `token` is not special.
  const std::string& SpecialTextOf(int32_t token) const;
  size_t max_token_bytes() const { return max_token_bytes_; }

 private:
  void MakeTree();

  std::vector<std::string> token_bytes_, special_texts_;
  std::vector<int32_t> end_tokens_;
  std::vector<std::pair<std::string, int32_t>> special_tokens_;
  std::vector<int32_t> sorted_tokens_;
  std::vector<Node> nodes_;
  size_t max_token_bytes_ = 0;
};

}  // namespace tdock::inference
