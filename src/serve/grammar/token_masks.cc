#include "serve/grammar/token_masks.h"

#include <algorithm>
#include <utility>

namespace tdock::serve {
namespace {

void Set(TokenMask& mask, int32_t token) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
}

}  // namespace

TokenMasks::TokenMasks(std::vector<std::string> token_bytes, std::span<const int32_t> end_tokens)
    : token_bytes_(std::move(token_bytes)), end_tokens_(end_tokens.begin(), end_tokens.end()) {
  for (size_t id = 0; id < token_bytes_.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    const bool is_end = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
    if (!token_bytes_[id].empty() && !is_end) sorted_.push_back(token);
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) { return BytesOf(a) < BytesOf(b); });
}

std::shared_ptr<const TokenMask> TokenMasks::For(const JsonAcceptor& acceptor) {
  const std::string key = acceptor.Key();
  {
    const MutexLock lock(mu_);
    const auto found = kept_.find(key);
    if (found != kept_.end()) return found->second;
  }
  auto mask = std::make_shared<TokenMask>((token_bytes_.size() + 63) / 64);
  if (acceptor.complete()) {
    for (const int32_t token : end_tokens_) {
      if (std::cmp_less(token, token_bytes_.size())) Set(*mask, token);
    }
  } else {
    Mark(acceptor, 0, sorted_.size(), 0, *mask);
  }
  const MutexLock lock(mu_);
  if (kept_.size() >= kMostKept) kept_.clear();
  kept_[key] = mask;
  return mask;
}

// The tokens [begin, end) have `depth` bytes in common, after which the text is as `acceptor` says.
void TokenMasks::Mark(const JsonAcceptor& acceptor, size_t begin, size_t end, size_t depth, TokenMask& mask) const {
  while (begin < end && BytesOf(sorted_[begin]).size() == depth) Set(mask, sorted_[begin++]);
  while (begin < end) {
    const char byte = BytesOf(sorted_[begin])[depth];
    const auto next = std::partition_point(sorted_.begin() + static_cast<std::ptrdiff_t>(begin),
                                           sorted_.begin() + static_cast<std::ptrdiff_t>(end), [&](int32_t token) {
                                             return static_cast<unsigned char>(BytesOf(token)[depth]) <=
                                                    static_cast<unsigned char>(byte);
                                           });
    const auto group_end = static_cast<size_t>(next - sorted_.begin());
    JsonAcceptor after = acceptor;
    if (after.Push(byte)) Mark(after, begin, group_end, depth + 1, mask);
    begin = group_end;
  }
}

}  // namespace tdock::serve
