#include "tdock/mesh_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/base/testing/fails.h"

namespace tdock {
namespace {

using testing::ElementsAre;
using Chunks = std::vector<std::vector<int64_t>>;

// The ranks of a mesh for which `rule` holds.
template <class Rule>
std::vector<int64_t> RanksOf(const MeshSizes& sizes, Rule rule) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < sizes.tp * sizes.cp * sizes.pp * sizes.dp; ++rank) {
    if (*rule(*CoordinatesOf(rank, sizes), sizes)) ranks.push_back(rank);
  }
  return ranks;
}

TEST(MeshRules, NumberRanksByTensorContextDataAndPipeline) {
  const MeshSizes sizes = {.tp = 2, .pp = 2, .dp = 2};
  std::vector<int64_t> dp;
  for (int64_t rank = 0; rank < 8; ++rank) dp.push_back(CoordinatesOf(rank, sizes)->dp);
  EXPECT_THAT(dp, ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_EQ(*CoordinatesOf(23, {.tp = 2, .cp = 3, .pp = 2, .dp = 2}),
            (MeshCoordinates{.tp = 1, .cp = 2, .pp = 1, .dp = 1}));
  EXPECT_THAT(CoordinatesOf(8, sizes).status(), Fails(absl::StatusCode::kOutOfRange, {"global rank 8 of 8"}));
  EXPECT_THAT(CoordinatesOf(0, {.tp = 0}).status(), Fails(absl::StatusCode::kInvalidArgument, {"tp is 0", "positive"}));
  EXPECT_FALSE(CoordinatesOf(0, {.tp = int64_t{1} << 40, .cp = int64_t{1} << 40}).ok());
}

TEST(MeshRules, LetOneRankOfEachReplicaAskAndOnePut) {
  EXPECT_THAT(RanksOf({.tp = 2, .pp = 2, .dp = 2}, AsksDock), ElementsAre(0, 2));
  EXPECT_THAT(RanksOf({.tp = 2, .pp = 2, .dp = 2}, PutsResults), ElementsAre(4, 6));
  for (int64_t tp : {1, 2}) {
    for (int64_t cp : {1, 3}) {
      for (int64_t pp : {1, 4}) {
        for (int64_t dp : {1, 2}) {
          const MeshSizes sizes = {.tp = tp, .cp = cp, .pp = pp, .dp = dp};
          for (auto* rule : {&AsksDock, &PutsResults}) {
            std::multiset<int64_t> replicas;
            for (int64_t rank : RanksOf(sizes, rule)) replicas.insert(CoordinatesOf(rank, sizes)->dp);
            for (int64_t replica = 0; replica < dp; ++replica) EXPECT_EQ(replicas.count(replica), 1u);
          }
        }
      }
    }
  }
  EXPECT_THAT(PutsResults({.cp = 2}, {.cp = 2}).status(), Fails(absl::StatusCode::kOutOfRange, {"cp rank 2 of 2"}));
  EXPECT_THAT(AsksDock({.dp = -1}, {}).status(), Fails(absl::StatusCode::kOutOfRange, {"dp rank -1 of 1"}));
}

TEST(MeshRules, ChunkTheRowsOfADataParallelRank) {
  EXPECT_EQ(*RowChunksOfRank(2, 4, 1), (Chunks{{4, 5}, {6, 7}}));
  EXPECT_EQ(*RowChunksOfRank(3, 8, 1), (Chunks{{8, 9, 10}, {11, 12, 13}, {14, 15}}));
  EXPECT_EQ(*RowChunksOfRank(3, 0, 1), Chunks());
  EXPECT_THAT(RowChunksOfRank(0, 8, 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"chunks of 0", "rank 1", "8 rows"}));
  EXPECT_FALSE(RowChunksOfRank(2, -4, 1).ok());
  EXPECT_FALSE(RowChunksOfRank(2, INT64_MAX, 2).ok());
  EXPECT_THAT(RowChunksOfRank(1, int64_t{1} << 61, 0).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"per rank", "2305843009213693952", "at most 268435456"}));
  EXPECT_THAT(RowChunksOfRank(1, 1 << 28, 0).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"chunks", "268435456", "at most 1048576"}));
  EXPECT_EQ(RowChunksOfRank(2, 4, int64_t{1} << 58)->size(), 2u);
}

TEST(MeshRules, SliceSequencesForContextParallelRanks) {
  EXPECT_THAT(*ContextSlices(12, 1, 3, ContextSlicing::kContiguous), ElementsAre(TokenRange{4, 4}));
  EXPECT_THAT(*ContextSlices(12, 0, 3, ContextSlicing::kRing), ElementsAre(TokenRange{0, 2}, TokenRange{10, 2}));
  EXPECT_THAT(*ContextSlices(12, 2, 3, ContextSlicing::kRing), ElementsAre(TokenRange{4, 2}, TokenRange{6, 2}));
  EXPECT_THAT(ContextSlices(12, 0, 4, ContextSlicing::kRing).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"12 tokens", "8 equal parts", "multiple of 8"}));
  EXPECT_THAT(ContextSlices(12, 3, 3, ContextSlicing::kRing).status(),
              Fails(absl::StatusCode::kOutOfRange, {"cp rank 3 of 3"}));
  EXPECT_FALSE(ContextSlices(-12, 0, 3, ContextSlicing::kRing).ok());
}

TEST(MeshRules, SliceEveryTokenOnceAndAttentionEqually) {
  for (ContextSlicing slicing : {ContextSlicing::kContiguous, ContextSlicing::kRing}) {
    for (int64_t cp : {1, 2, 4}) {
      std::vector<int> seen(32);
      std::set<int64_t> work;
      for (int64_t rank = 0; rank < cp; ++rank) {
        int64_t attended = 0;
        const std::vector<TokenRange> ranges = *ContextSlices(32, rank, cp, slicing);
        for (const TokenRange& range : ranges) {
          for (int64_t token = range.begin; token < range.begin + range.count; ++token) {
            ++seen[static_cast<size_t>(token)];
            attended += token + 1;
          }
        }
        work.insert(attended);
      }
      EXPECT_EQ(seen, std::vector<int>(32, 1));
      if (slicing == ContextSlicing::kRing) {
        EXPECT_EQ(work.size(), 1u);
      }
    }
  }
}

TEST(MeshRules, PadSequencesToWhatCanBeCut) {
  EXPECT_EQ(*SequenceMultiple({.tp = 2, .cp = 3}, ContextSlicing::kContiguous), 6);
  EXPECT_EQ(*SequenceMultiple({.tp = 2, .cp = 3}, ContextSlicing::kRing), 12);
  EXPECT_FALSE(SequenceMultiple({.tp = int64_t{1} << 62}, ContextSlicing::kRing).ok());
}

}  // namespace
}  // namespace tdock
