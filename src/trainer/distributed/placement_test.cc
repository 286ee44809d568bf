#include "trainer/distributed/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

runtime::RankEnvironment Ranks(int world_size, int of_machine) {
  return {.world_size = world_size, .local_world_size = of_machine};
}

RunConfig With(std::vector<std::string> pools, std::vector<std::string> roles) {
  RunConfig config;
  config.resources.pools = std::move(pools);
  config.resources.roles = std::move(roles);
  return config;
}

std::string Refusal(const RunConfig& config, const runtime::RankEnvironment& environment) {
  const auto roles = Place(config, environment);
  EXPECT_TRUE(absl::IsInvalidArgument(roles.status())) << roles.status();
  return std::string(roles.status().message());
}

TEST(Placement, WithoutPoolsEveryProcessHasEveryRole) {
  const auto roles = Place(With({}, {}), Ranks(3, 3));
  ASSERT_TRUE(roles.ok()) << roles.status();
  for (const std::string& role : RolesOfProcesses()) EXPECT_THAT(roles->at(role), ElementsAre(0, 1, 2)) << role;
}

TEST(Placement, PoolsHaveConsecutiveRanksInTheirOrder) {
  const auto roles = Place(With({"train=1", "rollout=2", "ref=1"}, {"rollout=rollout", "ref=ref"}), Ranks(4, 4));
  ASSERT_TRUE(roles.ok()) << roles.status();
  EXPECT_THAT(roles->at("actor"), ElementsAre(0));
  EXPECT_THAT(roles->at("reward"), ElementsAre(0));
  EXPECT_THAT(roles->at("rollout"), ElementsAre(1, 2));
  EXPECT_THAT(roles->at("ref"), ElementsAre(3));
}

TEST(Placement, APoolMayBeOnSeveralMachines) {
  const auto roles = Place(With({"train=1", "rollout=1+2"}, {"rollout=rollout"}), Ranks(4, 2));
  ASSERT_TRUE(roles.ok()) << roles.status();
  EXPECT_THAT(roles->at("actor"), ElementsAre(0));
  EXPECT_THAT(roles->at("rollout"), ElementsAre(1, 2, 3));
}

TEST(Placement, WhatIsMissingIsNamed) {
  EXPECT_THAT(Refusal(With({"train=1", "rollout=4"}, {"rollout=rollout"}), Ranks(3, 3)),
              Mentions({"resources.pools [train=1, rollout=4]", "'rollout'", "4"}));
  EXPECT_THAT(Refusal(With({"train=1"}, {}), Ranks(3, 3)), Mentions({"ranks 1, 2 of 3"}));
}

TEST(Placement, WhatTrainsNeedsRankZero) {
  EXPECT_THAT(Refusal(With({"rollout=1", "train=1"}, {"actor=train"}), Ranks(2, 2)), Mentions({"actor trains"}));
}

TEST(Placement, PartialRolloutsAreOfRankZero) {
  RunConfig config = With({}, {});
  config.async.partial_rollout_max_split = 2;
  EXPECT_THAT(Refusal(config, Ranks(2, 2)), Mentions({"partial_rollout_max_split=2"}));
  config.resources = With({"train=1", "ref=1"}, {"ref=ref"}).resources;
  EXPECT_TRUE(Place(config, Ranks(2, 2)).ok());
}

TEST(Placement, OneRankAsksServers) {
  RunConfig config = With({}, {});
  config.servers.urls = {"http://127.0.0.1:8000"};
  EXPECT_THAT(Refusal(config, Ranks(2, 2)), Mentions({"rollout.servers", "rollout has 2"}));
  config.resources = With({"train=1", "ref=1"}, {"ref=ref"}).resources;
  EXPECT_TRUE(Place(config, Ranks(2, 2)).ok());
}

}  // namespace
}  // namespace tdock::trainer
