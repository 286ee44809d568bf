#include "trainer/stages/shard.h"

#include <gtest/gtest.h>

namespace tdock::trainer {
namespace {

TEST(Shard, ShardsOfAllRanksAreTheTensorInWholeBlocks) {
  for (const int64_t numbers : {0, 1, 255, 256, 257, 1000, 4096, 100'003}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Shard shard = ShardOf(numbers, rank, ranks);
        EXPECT_EQ(shard.begin, next) << numbers << " numbers, rank " << rank << " of " << ranks;
        EXPECT_GE(shard.size, 0);
        EXPECT_LE(shard.size, ShardRoom(numbers, ranks));
        if (shard.size > 0) {
          EXPECT_EQ(shard.begin % BlockBytes::kBlock, 0);
        }
        next += shard.size;
      }
      EXPECT_EQ(next, numbers) << ranks << " ranks";
    }
  }
}

TEST(Shard, ASmallTensorHasNoneForTheLastRanks) {
  EXPECT_EQ(ShardOf(300, 0, 4).size, 256);
  EXPECT_EQ(ShardOf(300, 1, 4).size, 44);
  EXPECT_EQ(ShardOf(300, 2, 4).size, 0);
  EXPECT_EQ(ShardOf(300, 3, 4).size, 0);
}

}  // namespace
}  // namespace tdock::trainer
