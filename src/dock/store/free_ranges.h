// Which parts of segments are in use: best fit, with adjacent free ranges merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace tdock::dock {

// The position of a byte in shared memory: the same for every process that maps the segment.
struct SegmentPlace {
  uint64_t segment = 0;
  uint64_t offset = 0;

  friend auto operator<=>(const SegmentPlace&, const SegmentPlace&) = default;
};

// Divides segments into ranges that are free or in use. It handles numbers only, not memory. Operations are logarithmic
// in the number of ranges. Not thread-safe.
//
//   segment 3  | used | free      | used | used | free                   |
//   segment 7  | free                                                    |
class FreeRanges {
 public:
  // Adds a segment that is entirely free, under a new number. Throws std::bad_alloc, with nothing changed.
  void Add(uint64_t segment, uint64_t bytes);
  // Removes a segment that IsFree().
  void Remove(uint64_t segment) noexcept;

  // The front of the smallest free range of at least `bytes` > 0; among equal ones that of the lowest segment and
  // offset, so that the last segments become empty. Nothing if there is none. Throws std::bad_alloc, with nothing
  // changed.
  std::optional<SegmentPlace> Take(uint64_t bytes);
  // Frees what Take() returned. Returns how many bytes it had.
  uint64_t Return(SegmentPlace place) noexcept;

  bool IsFree(uint64_t segment) const;

 private:
  using BySize = std::set<std::tuple<uint64_t, SegmentPlace>>;

  struct Range {
    uint64_t bytes = 0;
    bool free = true;
    // While the range is in use, the node of by_size_ that it will need, because freeing must not allocate.
    BySize::node_type node;
  };
  using Ranges = std::map<SegmentPlace, Range>;

  // Merges both into one free range; the second must be free.
  void Absorb(Ranges::iterator range, Ranges::iterator next) noexcept;

  Ranges ranges_;   // all, without gaps within a segment
  BySize by_size_;  // those that are free
};

}  // namespace tdock::dock
