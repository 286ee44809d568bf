// Which numbers of a long sequence were seen.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace tdock {

// Disjoint ranges of numbers; adjacent ones are one.
class Ranges {
 public:
  // Adds the numbers from `begin` to before `end`. False, and nothing is added, if one of them is there already.
  bool Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return begin == end;
    const auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < end) return false;
    const bool joins_next = next != ranges_.end() && next->first == end;
    const auto before = next == ranges_.begin() ? ranges_.end() : std::prev(next);
    if (before != ranges_.end() && before->second > begin) return false;
    total_ += end - begin;
    const uint64_t last = joins_next ? next->second : end;
    if (joins_next) ranges_.erase(next);
    if (before != ranges_.end() && before->second == begin) {
      before->second = last;
    } else {
      ranges_.emplace(begin, last);
    }
    return true;
  }
  // How many numbers there are.
  uint64_t total() const { return total_; }

 private:
  std::map<uint64_t, uint64_t> ranges_;
  uint64_t total_ = 0;
};

}  // namespace tdock
