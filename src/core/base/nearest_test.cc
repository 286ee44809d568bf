#include "core/base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tdock {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("", "ab"), 2u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("ca", "abc"), 3u);  // of optimal string alignment; 2 with free transpositions
  EXPECT_EQ(EditDistance("sede", "seed"), 1u);
  EXPECT_EQ(EditDistance("Batch-Size", "batch_size"), 0u);
}

TEST(NearestKey, PrefersTheFewestMistakes) {
  const std::vector<std::string> known = {"actor.optim.lr", "critic.optim.lr", "actor.clip_ratio", "seed"};
  EXPECT_EQ(NearestKey("actr.optim.lr", known), "actor.optim.lr");
  EXPECT_EQ(NearestKey("critic.lr", known), "critic.optim.lr");
  EXPECT_EQ(NearestKey("lr", known), "actor.optim.lr");
  EXPECT_EQ(NearestKey("sede", known), "seed");
  EXPECT_EQ(NearestKey("optim.clip_ration", known), "actor.clip_ratio");
}

TEST(NearestKey, IsSilentWhenNothingIsNear) {
  const std::vector<std::string> known = {"actor.optim.lr", "seed"};
  EXPECT_EQ(NearestKey("actor.zzzz", known), std::nullopt);
  EXPECT_EQ(NearestKey("x", known), std::nullopt);
  EXPECT_EQ(NearestKey(std::string(201, 's'), known), std::nullopt);
  EXPECT_EQ(NearestKey("seed", {}), std::nullopt);
}

}  // namespace
}  // namespace tdock
