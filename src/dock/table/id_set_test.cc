#include "dock/table/id_set.h"

#include <gtest/gtest.h>

#include <iterator>
#include <numeric>
#include <set>

#include "core/base/rng.h"

namespace tdock::dock {
namespace {

std::vector<uint64_t> All(const IdSet& set) {
  std::vector<uint64_t> ids;
  set.First(set.size(), ids);
  return ids;
}

TEST(IdSet, KeepsIdsInOrderAndSelectsByRank) {
  IdSet set;
  EXPECT_FALSE(set.Contains(0));
  set.Insert(5'000'000'000);
  set.Insert(0);
  set.Insert(1000, 1030);
  EXPECT_EQ(set.size(), 32);
  EXPECT_TRUE(set.Contains(1029));
  EXPECT_FALSE(set.Contains(1030));
  EXPECT_EQ(set.Select(0), 0u);
  EXPECT_EQ(set.Select(1), 1000u);
  EXPECT_EQ(set.Select(31), 5'000'000'000u);
  std::vector<uint64_t> ids = {9};
  set.First(2, ids);
  EXPECT_EQ(ids, (std::vector<uint64_t>{9, 0, 1000}));
  set.Erase(0, 6'000'000'000 / 1024);
  EXPECT_EQ(All(set), std::vector<uint64_t>{5'000'000'000});
  set.Erase(5'000'000'000);
  EXPECT_EQ(set.size(), 0);
  EXPECT_TRUE(All(set).empty());
}

TEST(IdSet, BehavesAsASortedSet) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Rng rng(seed);
    IdSet set;
    std::set<uint64_t> twin;
    const uint64_t range = uint64_t{1} << (8 + 4 * seed);
    for (int step = 0; step < 1'500; ++step) {
      const uint64_t begin = rng.Below(range), end = begin + rng.Below(rng.Below(10) == 0 ? 3'000 : 3);
      if (rng.Below(2) == 0) {
        set.Insert(begin, end);
        for (uint64_t id = begin; id < end; ++id) twin.insert(id);
      } else {
        set.Erase(begin, end);
        twin.erase(twin.lower_bound(begin), twin.lower_bound(end));
      }
      ASSERT_EQ(set.size(), static_cast<int64_t>(twin.size())) << "seed " << seed << " step " << step;
      const uint64_t probe = rng.Below(range);
      ASSERT_EQ(set.Contains(probe), twin.contains(probe));
      if (!twin.empty() && step % 16 == 0) {
        const uint64_t rank = rng.Below(twin.size());
        ASSERT_EQ(set.Select(static_cast<int64_t>(rank)), *std::next(twin.begin(), static_cast<ptrdiff_t>(rank)));
      }
      if (step % 500 == 0) {
        std::vector<int64_t> ranks(twin.size());
        std::iota(ranks.rbegin(), ranks.rend(), 0);
        std::vector<uint64_t> selected;
        set.Select(ranks, selected);
        ASSERT_EQ(selected, std::vector<uint64_t>(twin.rbegin(), twin.rend()));
        ASSERT_EQ(All(set), std::vector<uint64_t>(twin.begin(), twin.end()));
      }
    }
  }
}

}  // namespace
}  // namespace tdock::dock
