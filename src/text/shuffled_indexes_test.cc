#include "text/shuffled_indexes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tdock::text {
namespace {

TEST(ShuffledIndexes, EveryEpochHasEachIndexOnceInANewOrder) {
  ShuffledIndexes indexes(100, 3);
  std::vector<int64_t> sorted(100);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::vector<int64_t> last;
  for (int epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> drawn;
    for (const int64_t count : {1, 0, 59, 40}) {
      const std::vector<int64_t> next = indexes.Next(count);
      ASSERT_EQ(next.size(), static_cast<size_t>(count));
      drawn.insert(drawn.end(), next.begin(), next.end());
    }
    EXPECT_NE(drawn, last);
    EXPECT_NE(drawn, sorted);
    last = drawn;
    EXPECT_THAT(drawn, testing::UnorderedElementsAreArray(sorted));
  }
}

TEST(ShuffledIndexes, DoesNotDependOnHowMuchIsDrawnAtOnce) {
  ShuffledIndexes one(7, 1), many(7, 1);
  std::vector<int64_t> by_one;
  by_one.reserve(30);
  for (int i = 0; i < 30; ++i) by_one.push_back(one.Next(1)[0]);
  EXPECT_EQ(many.Next(30), by_one);
}

TEST(ShuffledIndexes, ContinuesFromAPosition) {
  for (const int64_t position : {0, 1, 6, 7, 8, 14, 1000}) {
    ShuffledIndexes whole(7, 1), rest(7, 1, position);
    whole.Next(position);
    EXPECT_EQ(rest.Next(20), whole.Next(20)) << position;
  }
}

TEST(ShuffledIndexes, DependsOnTheSeed) {
  EXPECT_EQ(ShuffledIndexes(50, 1).Next(50), ShuffledIndexes(50, 1).Next(50));
  EXPECT_NE(ShuffledIndexes(50, 1).Next(50), ShuffledIndexes(50, 2).Next(50));
}

TEST(ShuffledIndexes, GoesOnWithOneSample) { EXPECT_THAT(ShuffledIndexes(1, 0).Next(3), testing::Each(0)); }

}  // namespace
}  // namespace tdock::text
