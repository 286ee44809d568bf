#include "core/tensor/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/base/rng.h"

namespace tdock {
namespace {

std::vector<std::vector<size_t>> Sorted(std::vector<std::vector<size_t>> sets) {
  for (auto& set : sets) std::sort(set.begin(), set.end());
  std::sort(sets.begin(), sets.end());
  return sets;
}

int64_t Sum(std::span<const int64_t> weights, const std::vector<size_t>& set) {
  return std::accumulate(set.begin(), set.end(), int64_t{0}, [&](int64_t sum, size_t i) { return sum + weights[i]; });
}

TEST(BalanceEqualSizes, SplitsTheWorkOfABatchAsTheFieldDoes) {
  std::vector<int64_t> work;  // of a transformer, in proportion
  for (int64_t length : {100, 900, 200, 800, 300, 700, 400, 600}) work.push_back(24576 * length + length * length);
  EXPECT_EQ(Sorted(BalanceEqualSizes(work, 2)), (std::vector<std::vector<size_t>>{{0, 3, 5, 6}, {1, 2, 4, 7}}));
}

TEST(BalanceEqualSizes, CoversEveryPositionOnceInSetsOfOneSize) {
  Rng rng(1);
  for (size_t parts : {1, 2, 3, 8}) {
    for (size_t size : {0, 1, 4, 32}) {
      std::vector<int64_t> weights(parts * size);
      for (int64_t& weight : weights) weight = static_cast<int64_t>(rng.Below(1000));
      const auto sets = BalanceEqualSizes(weights, parts);
      ASSERT_EQ(sets.size(), parts);
      std::vector<size_t> all;
      for (const auto& set : sets) {
        EXPECT_EQ(set.size(), size);
        all.insert(all.end(), set.begin(), set.end());
      }
      std::sort(all.begin(), all.end());
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i);
    }
  }
}

TEST(BalanceEqualSizes, DiffersLessThanSharingOutInOrder) {
  Rng rng(2);
  std::vector<int64_t> lengths(256);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(rng.Below(4096));
  const auto sets = BalanceEqualSizes(lengths, 8);
  const int64_t heaviest = Sum(lengths, sets.front()), lightest = Sum(lengths, sets.back());
  EXPECT_GE(heaviest, lightest);
  EXPECT_LT(static_cast<double>(heaviest - lightest), 0.001 * static_cast<double>(heaviest));
}

}  // namespace
}  // namespace tdock
