#include "dock/store/free_ranges.h"

#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace tdock::dock {

void FreeRanges::Add(uint64_t segment, uint64_t bytes) {
  const SegmentPlace place = {segment, 0};
  const auto added = by_size_.emplace(bytes, place).first;
  try {
    ranges_.emplace(place, Range{.bytes = bytes, .free = true, .node = {}});
  } catch (...) {
    by_size_.erase(added);
    throw;
  }
}

void FreeRanges::Remove(uint64_t segment) noexcept {
  const auto range = ranges_.find({segment, 0});
  by_size_.erase({range->second.bytes, range->first});
  ranges_.erase(range);
}

std::optional<SegmentPlace> FreeRanges::Take(uint64_t bytes) {
  const auto best = by_size_.lower_bound({bytes, SegmentPlace()});
  if (best == by_size_.end()) return std::nullopt;
  const SegmentPlace place = std::get<1>(*best);
  Range& range = ranges_.find(place)->second;
  if (range.bytes > bytes) {
    const SegmentPlace behind = {place.segment, place.offset + bytes};
    const uint64_t left = range.bytes - bytes;
    const auto added = by_size_.emplace(left, behind).first;
    try {
      ranges_.emplace(behind, Range{.bytes = left, .free = true, .node = {}});
    } catch (...) {
      by_size_.erase(added);
      throw;
    }
  }
  range.bytes = bytes;
  range.free = false;
  range.node = by_size_.extract(best);
  return place;
}

uint64_t FreeRanges::Return(SegmentPlace place) noexcept {
  auto range = ranges_.find(place);
  const uint64_t bytes = range->second.bytes;
  range->second.free = true;
  BySize::node_type node = std::move(range->second.node);
  if (const auto next = std::next(range);
      next != ranges_.end() && next->first.segment == place.segment && next->second.free) {
    by_size_.erase({next->second.bytes, next->first});
    Absorb(range, next);
  }
  if (range != ranges_.begin()) {
    const auto before = std::prev(range);
    if (before->first.segment == place.segment && before->second.free) {
      by_size_.erase({before->second.bytes, before->first});
      Absorb(before, range);
      range = before;
    }
  }
  node.value() = {range->second.bytes, range->first};
  by_size_.insert(std::move(node));
  return bytes;
}

void FreeRanges::Absorb(Ranges::iterator range, Ranges::iterator next) noexcept {
  range->second.bytes += next->second.bytes;
  ranges_.erase(next);
}

bool FreeRanges::IsFree(uint64_t segment) const {
  const auto first = ranges_.find({segment, 0});
  if (first == ranges_.end() || !first->second.free) return false;
  const auto next = std::next(first);
  return next == ranges_.end() || next->first.segment != segment;
}

}  // namespace tdock::dock
