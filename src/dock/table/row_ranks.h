// A set of rows of a block, with the rank of each.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace tdock::dock {

// Bits by row.
using RowBits = absl::InlinedVector<uint64_t, 1>;

// Immutable, therefore thread-safe.
class RowRanks {
 public:
  explicit RowRanks(RowBits bits) : bits_(std::move(bits)) {
    before_.reserve(bits_.size());
    for (uint64_t word : bits_) {
      before_.push_back(size_);
      size_ += static_cast<uint32_t>(std::popcount(word));
    }
  }

  uint32_t size() const { return size_; }
  // The number of rows of the set below this one.
  uint32_t Rank(uint32_t row) const {
    const uint64_t smaller = (uint64_t{1} << row % 64) - 1;
    return before_[row / 64] + static_cast<uint32_t>(std::popcount(bits_[row / 64] & smaller));
  }
  template <class Visit>
  void ForEach(Visit visit) const {
    for (uint32_t word = 0; word < bits_.size(); ++word) {
      for (uint64_t left = bits_[word]; left != 0; left &= left - 1) {
        visit(word * 64 + static_cast<uint32_t>(std::countr_zero(left)));
      }
    }
  }

 private:
  const RowBits bits_;
  std::vector<uint32_t> before_;  // by word: the number of rows before it
  uint32_t size_ = 0;
};

}  // namespace tdock::dock
