#include "dock/store/free_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/base/rng.h"

namespace tdock::dock {
namespace {

TEST(FreeRanges, TakesTheSmallestRangeThatFits) {
  FreeRanges ranges;
  ranges.Add(1, 1000);
  const SegmentPlace a = *ranges.Take(100), b = *ranges.Take(200), c = *ranges.Take(50), d = *ranges.Take(10);
  EXPECT_EQ(d, (SegmentPlace{1, 350}));
  EXPECT_EQ(ranges.Return(a), 100u);
  EXPECT_EQ(ranges.Return(c), 50u);
  EXPECT_EQ(*ranges.Take(40), c);
  EXPECT_EQ(*ranges.Take(60), a);
  EXPECT_EQ(*ranges.Take(640), (SegmentPlace{1, 360}));
  EXPECT_FALSE(ranges.Take(41));
  EXPECT_EQ(ranges.Return(b), 200u);
}

TEST(FreeRanges, MergesWithBothNeighboursButNotAcrossSegments) {
  FreeRanges ranges;
  ranges.Add(1, 300);
  ranges.Add(2, 100);
  const SegmentPlace other = *ranges.Take(100);
  EXPECT_EQ(other, (SegmentPlace{2, 0}));
  const SegmentPlace a = *ranges.Take(100), b = *ranges.Take(100), c = *ranges.Take(100);
  ranges.Return(a);
  ranges.Return(c);
  ranges.Return(other);
  EXPECT_FALSE(ranges.Take(101));
  EXPECT_FALSE(ranges.IsFree(1));
  EXPECT_TRUE(ranges.IsFree(2));
  ranges.Return(b);
  EXPECT_TRUE(ranges.IsFree(1));
  EXPECT_FALSE(ranges.Take(301));
  EXPECT_EQ(*ranges.Take(300), (SegmentPlace{1, 0}));
}

TEST(FreeRanges, LeavesTheLastSegmentsEmpty) {
  FreeRanges ranges;
  ranges.Add(7, 100);
  ranges.Add(3, 100);
  EXPECT_EQ(ranges.Take(100)->segment, 3u);
  EXPECT_EQ(ranges.Take(100)->segment, 7u);
}

TEST(FreeRanges, ForgetsASegment) {
  FreeRanges ranges;
  ranges.Add(1, 100);
  ranges.Add(2, 50);
  ranges.Remove(1);
  EXPECT_FALSE(ranges.IsFree(1));
  EXPECT_FALSE(ranges.Take(51));
  EXPECT_EQ(ranges.Take(50)->segment, 2u);
}

// Against a map of every byte: what is taken was free, and is the tightest fit that there is.
TEST(FreeRanges, AgreesWithAMapOfEveryByte) {
  Rng rng(21);
  for (int round = 0; round < 50; ++round) {
    FreeRanges ranges;
    std::map<uint64_t, std::vector<bool>> used;
    for (uint64_t segment = 0; segment < 3; ++segment) {
      used[segment].resize(200 + rng.Below(200));
      ranges.Add(segment, used[segment].size());
    }
    std::vector<std::pair<SegmentPlace, uint64_t>> taken;
    for (int step = 0; step < 400; ++step) {
      if (!taken.empty() && rng.Below(2) == 0) {
        std::swap(taken[rng.Below(taken.size())], taken.back());
        const auto [place, bytes] = taken.back();
        taken.pop_back();
        EXPECT_EQ(ranges.Return(place), bytes);
        for (uint64_t i = 0; i < bytes; ++i) used[place.segment][place.offset + i] = false;
        continue;
      }
      const uint64_t bytes = 1 + rng.Below(60);
      uint64_t tightest = UINT64_MAX;
      for (const auto& [segment, map] : used) {
        for (auto end = map.begin(); end != map.end();) {
          const auto begin = std::find(end, map.end(), false);
          end = std::find(begin, map.end(), true);
          const auto size = static_cast<uint64_t>(end - begin);
          if (size >= bytes) tightest = std::min(tightest, size);
        }
      }
      const std::optional<SegmentPlace> place = ranges.Take(bytes);
      ASSERT_EQ(place.has_value(), tightest != UINT64_MAX);
      if (!place) continue;
      std::vector<bool>& map = used[place->segment];
      const auto begin = map.begin() + static_cast<ptrdiff_t>(place->offset);
      ASSERT_EQ(std::find(begin, map.end(), true) - begin, static_cast<ptrdiff_t>(tightest));
      std::fill_n(begin, bytes, true);
      taken.emplace_back(*place, bytes);
    }
    for (const auto& [place, bytes] : taken) EXPECT_EQ(ranges.Return(place), bytes);
    for (const auto& [segment, map] : used) EXPECT_TRUE(ranges.IsFree(segment));
  }
}

}  // namespace
}  // namespace tdock::dock
