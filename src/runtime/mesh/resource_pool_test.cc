#include "runtime/mesh/resource_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/testing/fails.h"

namespace tdock::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string PoolsError(const std::vector<int64_t>& nodes, const std::vector<ResourcePool>& pools,
                       const std::map<std::string, std::string>& roles = {}) {
  return std::string(ResourcePools::Of(nodes, pools, roles).status().message());
}

TEST(ResourcePools, OnePoolOfAllProcessesIsTheDefault) {
  const ResourcePools pools = *ResourcePools::Global(8, 2, std::vector<std::string>{"rollout", "actor"});
  EXPECT_EQ(pools.world_size(), 16);
  EXPECT_EQ(*pools.PoolOf("actor"), "global_pool");
  EXPECT_EQ(*pools.RanksOfRole("actor"), *pools.RanksOfRole("rollout"));
  EXPECT_EQ(*pools.PlaceOf(11), (ProcessPlace{"global_pool", 1, 3}));
}

TEST(ResourcePools, SharedNodesAreDividedInTheOrderOfPools) {
  const ResourcePools pools = *ResourcePools::Of({4, 4}, {{"train", {2, 2}}, {"rollout", {2, 1}}},
                                                 {{"actor", "train"}, {"ref", "train"}, {"rollout", "rollout"}});
  EXPECT_THAT(*pools.RanksOfPool("train"), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(*pools.RanksOfRole("rollout"), ElementsAre(2, 3, 6));
  for (const int64_t rank : {0, 1, 4, 5}) EXPECT_EQ(pools.PlaceOf(rank)->pool, "train");
  EXPECT_EQ(*pools.PlaceOf(6), (ProcessPlace{"rollout", 1, 0}));
  EXPECT_THAT(pools.PlaceOf(7).status(), Fails(absl::StatusCode::kNotFound, {"rank 7", "node 1"}));
  EXPECT_THAT(pools.PlaceOf(8).status(), Fails(absl::StatusCode::kOutOfRange, {"rank 8 of 8"}));
  EXPECT_THAT(pools.RanksOfRole("critic").status().message(),
              HasSubstr("no role 'critic'; there are 'actor', 'ref', 'rollout'"));
}

TEST(ResourcePools, APartTakesTheNodeThatItFillsBest) {
  const ResourcePools pools = *ResourcePools::Of({8, 4}, {{"small", {4}}, {"large", {8}}}, {});
  EXPECT_THAT(*pools.RanksOfPool("small"), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(*pools.RanksOfPool("large"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(ResourcePools, SaysEveryShortageAtOnce) {
  const std::string shortages =
      PoolsError({4, 4}, {{"train", {8}}, {"judge", {4, 4, 4}}, {"small", {2}}},
                 {{"rollout", "train"}, {"ref", "train"}, {"reward", "judge"}, {"critic", "small"}});
  EXPECT_THAT(shortages, Mentions({"'ref', 'rollout'", "'train' [8]: available 4", "desired 8", "node 0", "'reward'",
                                   "'judge' [4, 4, 4]: available 2", "desired 3"}));
  EXPECT_EQ(std::count(shortages.begin(), shortages.end(), '\n'), 1);
  const std::string shortage = PoolsError({4}, {{"a", {3}}, {"b", {2}}});
  EXPECT_THAT(shortage, Mentions({"'b' [2]: available 1", "desired 2", "node 0"}));
  EXPECT_EQ(std::count(shortage.begin(), shortage.end(), '\n'), 0);
}

TEST(ResourcePools, SaysEveryMistakeAtOnce) {
  const std::string mistakes =
      PoolsError({0}, {{"a", {}}, {"b", {-1}}, {"c", {1}}, {"c", {1}}, {"", {1}}}, {{"actor", "train"}});
  EXPECT_THAT(mistakes, Mentions({"of 0 processes", "'a' []", "'b' [-1]", "of -1 processes", "'c'", "twice", "no name",
                                  "'actor'", "'train'", "'a', 'b', 'c'"}));
  EXPECT_EQ(std::count(mistakes.begin(), mistakes.end(), '\n'), 5);
  EXPECT_THAT(ResourcePools::Global(8, 0, {}).status().message(), HasSubstr("from 1 to 1048576 nodes, not 0"));
  EXPECT_FALSE(ResourcePools::Global(int64_t{1} << 62, 4, {}).ok());
}

}  // namespace
}  // namespace tdock::runtime
