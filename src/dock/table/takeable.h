// The units, rows or groups, that a consumer can take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "dock/table/id_set.h"

namespace tdock::dock {

// In the order in which they are handed out: by descending age, and by id within an age. An operation costs what
// IdSet's does, times the number of different ages. Not thread-safe.
class Takeable {
 public:
  int64_t size() const { return young_.size() + aged_size_; }

  // All ids of [begin, end): either none or all of them are in the set with this age.
  void Insert(uint64_t begin, uint64_t end, int32_t age) {
    if (age == 0) return young_.Insert(begin, end);
    aged_[age].Insert(begin, end);
    aged_size_ += static_cast<int64_t>(end - begin);
  }
  void Erase(uint64_t begin, uint64_t end, int32_t age) {
    if (age == 0) return young_.Erase(begin, end);
    const auto it = aged_.find(age);
    it->second.Erase(begin, end);
    if (it->second.size() == 0) aged_.erase(it);
    aged_size_ -= static_cast<int64_t>(end - begin);
  }

  // Appends the first `count`, which must exist.
  void First(int64_t count, std::vector<uint64_t>& ids) const {
    for (auto it = aged_.begin(); it != aged_.end() && count > 0; ++it) {
      const int64_t here = std::min(count, it->second.size());
      it->second.First(here, ids);
      count -= here;
    }
    young_.First(count, ids);
  }
  // Appends the id at each position of the order.
  void Select(std::span<const int64_t> places, std::vector<uint64_t>& ids) const {
    if (aged_size_ == 0) return young_.Select(places, ids);
    for (int64_t place : places) ids.push_back(Select(place));
  }

 private:
  uint64_t Select(int64_t place) const {
    for (const auto& [age, set] : aged_) {
      if (place < set.size()) return set.Select(place);
      place -= set.size();
    }
    return young_.Select(place);
  }

  IdSet young_;  // of age 0
  std::map<int32_t, IdSet, std::greater<>> aged_;
  int64_t aged_size_ = 0;
};

}  // namespace tdock::dock
