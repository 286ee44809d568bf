#include "trainer/distributed/stage_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/distributed/stage_groups.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NamedStage final : public Stage {
 public:
  NamedStage(std::string name, bool trains, Together together) : trains_(trains), together_(together) {
    consumer_.name = std::move(name);
  }
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows&, StageContext&) override { return StageOutput(); }
  bool trains() const override { return trains_; }
  Together together() const override { return together_; }

 private:
  ConsumerOptions consumer_;
  const bool trains_;
  const Together together_;
};

std::vector<int> RanksOfNamed(const char* name, bool trains, Together together) {
  const RanksOfRoles roles = {{"actor", {0, 1, 2}}, {"critic", {1, 0}}, {"rollout", {2}}};
  return RanksOf(NamedStage(name, trains, together), roles);
}

TEST(StageCall, StagesThatTrainAreOfAllRanksOfTheirRole) {
  EXPECT_THAT(RanksOfNamed("actor", true, Together::kResult), ElementsAre(0, 1, 2));
  EXPECT_THAT(RanksOfNamed("critic", true, Together::kResult), ElementsAre(0, 1));
  EXPECT_THAT(RanksOfNamed("one of my own", true, Together::kResult), ElementsAre(0));
}

TEST(StageCall, OthersAreDividedWhereRowsDoNotDependOnEachOther) {
  EXPECT_THAT(RanksOfNamed("values", false, Together::kNothing), ElementsAre(0, 1));
  EXPECT_THAT(RanksOfNamed("values", false, Together::kLastBits), ElementsAre(0));
  EXPECT_THAT(RanksOfNamed("advantage", false, Together::kNothing), ElementsAre(0));
}

TEST(StageCall, MethodsHaveVerlsNames) {
  const auto name = [](const char* stage) { return std::string(MethodOf(stage)->spec().name); };
  EXPECT_EQ(name("actor"), "update_actor");
  EXPECT_EQ(name("critic"), "update_critic");
  EXPECT_EQ(name("values"), "compute_values");
  EXPECT_EQ(MethodOf("advantage"), nullptr);
}

TEST(StageCall, SharesComeBackAsTheyWere) {
  const auto share = ShareIn(ToValue(
      StageShare{.stage = "actor", .partition = "p", .lease = 7, .step = 3, .whole_step = false, .rows = {5, 2, 9}}));
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->stage, "actor");
  EXPECT_EQ(share->partition, "p");
  EXPECT_EQ(share->lease, 7);
  EXPECT_EQ(share->step, 3);
  EXPECT_FALSE(share->whole_step);
  EXPECT_THAT(share->rows, ElementsAre(5, 2, 9));
}

TEST(StageCall, WhatIsMissingInAValueIsNamed) {
  const auto share = ShareIn(runtime::Value::Object{{"stage", "actor"}});
  EXPECT_TRUE(absl::IsInvalidArgument(share.status())) << share.status();
  EXPECT_THAT(share.status().message(), HasSubstr("lease"));
}

}  // namespace
}  // namespace tdock::trainer
