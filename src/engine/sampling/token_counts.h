// Which tokens a sequence has, as penalties need to know.
#pragma once

#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"

namespace tdock::engine {

class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(std::span<const int32_t> prompt) {
    for (const int32_t token : prompt) in_answer_.try_emplace(token, 0);
  }

  void AddToAnswer(int32_t token) { ++in_answer_[token]; }

  // Each token of the prompt and the answer, with how often the answer has it. In no order.
  const absl::flat_hash_map<int32_t, int64_t>& in_answer() const { return in_answer_; }

 private:
  absl::flat_hash_map<int32_t, int64_t> in_answer_;
};

}  // namespace tdock::engine
