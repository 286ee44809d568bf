// The tokens that may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "serve/grammar/json_acceptor.h"

namespace tdock::serve {

// Bit t % 64 of word t / 64 says whether token t may come.
using TokenMask = std::vector<uint64_t>;

// Thread-safe. Masks are kept, since answers are in the same few states most of the time.
class TokenMasks {
 public:
  // See TokenBytes(). After an object that is complete only end tokens may come, and before it none, even if one has
  // bytes.
  TokenMasks(std::vector<std::string> token_bytes, std::span<const int32_t> end_tokens);

  std::shared_ptr<const TokenMask> For(const JsonAcceptor& acceptor) TDOCK_EXCLUDES(mu_);
  const std::string& BytesOf(int32_t token) const { return token_bytes_[static_cast<size_t>(token)]; }

 private:
  static constexpr size_t kMostKept = 512;

  // Tokens in the order of their bytes: those that begin alike stand side by side.
  void Mark(const JsonAcceptor& acceptor, size_t begin, size_t end, size_t depth, TokenMask& mask) const;

  const std::vector<std::string> token_bytes_;
  const std::vector<int32_t> end_tokens_;
  std::vector<int32_t> sorted_;

  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<const TokenMask>> kept_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::serve
