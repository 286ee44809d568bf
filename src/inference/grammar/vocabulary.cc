#include "inference/grammar/vocabulary.h"

#include <algorithm>
#include <limits>

#include "inference/grammar/token_bytes.h"

namespace tdock::inference {
namespace {

const std::string& TextAt(const std::vector<std::string>& texts, int32_t token) {
  static const auto* const kNone = new std::string;
  return token >= 0 && std::cmp_less(token, texts.size()) ? texts[static_cast<size_t>(token)] : *kNone;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> token_bytes, std::vector<std::string> special_texts,
                       std::span<const int32_t> end_tokens)
    : token_bytes_(std::move(token_bytes)),
      special_texts_(std::move(special_texts)),
      end_tokens_(end_tokens.begin(), end_tokens.end()) {
  std::erase_if(end_tokens_, [&](int32_t token) { return token < 0 || !std::cmp_less(token, token_bytes_.size()); });
  special_texts_.resize(token_bytes_.size());
  for (const int32_t token : end_tokens_) {
    token_bytes_[static_cast<size_t>(token)].clear();
    special_texts_[static_cast<size_t>(token)].clear();
  }
  for (size_t id = 0; id < token_bytes_.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!special_texts_[id].empty()) {
      special_tokens_.emplace_back(special_texts_[id], token);
      token_bytes_[id].clear();
    }
    // A token that is longer than any that files may have would not fit the tree.
    const bool is_text = !token_bytes_[id].empty() && token_bytes_[id].size() < std::numeric_limits<uint16_t>::max();
    if (is_text) sorted_tokens_.push_back(token);
  }
  MakeTree();
}

Vocabulary::Vocabulary(const text::Tokenizer& tokenizer, std::span<const int32_t> end_tokens)
    : Vocabulary(TokenBytes(tokenizer), SpecialTexts(tokenizer), end_tokens) {}

const std::string& Vocabulary::BytesOf(int32_t token) const { return TextAt(token_bytes_, token); }

const std::string& Vocabulary::SpecialTextOf(int32_t token) const { return TextAt(special_texts_, token); }

void Vocabulary::MakeTree() {
  std::sort(sorted_tokens_.begin(), sorted_tokens_.end(),
            [&](int32_t a, int32_t b) { return BytesOf(a) < BytesOf(b); });
  std::vector<size_t> path;  // the nodes of the token before, by depth
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].next = static_cast<uint32_t>(nodes_.size());
  };
  for (size_t i = 0; i < sorted_tokens_.size(); ++i) {
    const std::string& bytes = BytesOf(sorted_tokens_[i]);
    max_token_bytes_ = std::max(max_token_bytes_, bytes.size());
    size_t shared = 0;
    while (shared < std::min(path.size(), bytes.size()) &&
           nodes_[path[shared]].byte == static_cast<uint8_t>(bytes[shared])) {
      ++shared;
    }
    close(shared);
    for (size_t depth = shared; depth < bytes.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({.next = 0,
                        .first_token = static_cast<uint32_t>(i),
                        .tokens = 0,
                        .depth = static_cast<uint16_t>(depth),
                        .byte = static_cast<uint8_t>(bytes[depth])});
    }
    ++nodes_[path.back()].tokens;
  }
  close(0);
}

}  // namespace tdock::inference
