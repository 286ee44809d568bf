#include "runtime/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Groups = std::vector<std::vector<int64_t>>;
using Names = std::vector<std::string>;

const Mesh kVerl = *Mesh::Of(8, {{"tp", 2}, {"dp", 2}, {"pp", 2}});

std::string MeshError(int64_t ranks, std::vector<MeshDimension> dimensions) {
  return std::string(Mesh::Of(ranks, std::move(dimensions)).status().message());
}

TEST(Mesh, NumbersTheFirstDimensionFastest) {
  std::vector<int64_t> dp, collecting;
  for (int64_t rank = 0; rank < kVerl.ranks(); ++rank) {
    dp.push_back(*kVerl.Coordinate(rank, "dp"));
    if (*kVerl.Coordinate(rank, "tp") == 0 && *kVerl.Coordinate(rank, "pp") == 1) collecting.push_back(rank);
  }
  EXPECT_THAT(dp, ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(collecting, ElementsAre(4, 6));
  EXPECT_THAT(*kVerl.Coordinates(6), ElementsAre(0, 1, 1));
}

TEST(Mesh, AgreesWithTheRulesOfTheDock) {
  const MeshSizes sizes{.tp = 2, .cp = 3, .pp = 4, .dp = 5};
  const Mesh mesh = *Mesh::Of(sizes);
  EXPECT_EQ(mesh.ToString(), "tp 2, cp 3, dp 5, pp 4");
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const MeshCoordinates at = *CoordinatesOf(rank, sizes);
    const std::vector<int64_t> coordinates = *mesh.Coordinates(rank);
    EXPECT_THAT(coordinates, ElementsAre(at.tp, at.cp, at.dp, at.pp));
    EXPECT_EQ(*mesh.RankAt(coordinates), rank);
  }
  EXPECT_THAT(Mesh::Of(MeshSizes{.tp = 0}).status().message(), HasSubstr("tp is 0"));
}

TEST(Mesh, GroupsRanksAlongDimensions) {
  EXPECT_THAT(*kVerl.GroupOf(5, Names{"tp"}), ElementsAre(4, 5));
  EXPECT_THAT(*kVerl.GroupOf(5, Names{"dp"}), ElementsAre(5, 7));
  EXPECT_THAT(*kVerl.GroupOf(5, Names{"pp", "tp"}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(*kVerl.GroupOf(5, {}), ElementsAre(5));
  EXPECT_EQ(*kVerl.Groups(Names{"tp"}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(*kVerl.Groups(Names{"dp"}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(*kVerl.Groups(Names{"tp", "dp", "pp"}), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(Mesh, OneDimensionTakesWhatIsLeft) {
  EXPECT_EQ(*Mesh::Of(8, {{"tp", 2}, {"dp"}, {"pp", 2}}), kVerl);
  EXPECT_EQ(*Mesh::Of(6, {{"dp"}})->Size("dp"), 6);
}

TEST(Mesh, SaysWhichSizesAreNearest) {
  EXPECT_THAT(MeshError(8, {{"tp", 3}, {"dp"}}), Mentions({"of tp 3 has 3 ranks", "divide 8", ": 2 and 4"}));
  EXPECT_THAT(MeshError(12, {{"tp", 5}, {"pp", 2}, {"dp"}}),
              Mentions({"of tp 5, pp 2 has 10 ranks", "divide 12", ": 6 and 12"}));
  EXPECT_THAT(MeshError(4, {{"tp", 8}, {"dp"}}), Mentions({"of tp 8 has 8 ranks", "divide 4", "do: 4"}));
  EXPECT_THAT(MeshError(8, {{"tp", 2}, {"dp", 2}}), Mentions({"of tp 2, dp 2 has 4 ranks", "are 8", "2 times"}));
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  EXPECT_THAT(MeshError(0, {{"dp"}}), HasSubstr("from 1 to 1048576 ranks, not 0"));
  EXPECT_THAT(MeshError(4, {{"", 4}}), HasSubstr("no name"));
  EXPECT_THAT(MeshError(4, {{"dp", 2}, {"dp", 2}}), HasSubstr("two dimensions 'dp'"));
  EXPECT_THAT(MeshError(4, {{"dp", -1}}), Mentions({"'dp'", "size -1"}));
  EXPECT_THAT(MeshError(4, {{"dp"}, {"tp"}}), HasSubstr("'dp' and 'tp'"));
  EXPECT_THAT(MeshError(4, {{"dp", int64_t{1} << 62}, {"tp", 4}}), HasSubstr("1048576 ranks"));
  EXPECT_THAT(MeshError(2, {}), HasSubstr("no dimensions"));
}

TEST(Mesh, NamesTheDimensionOrRankThatIsWrong) {
  EXPECT_THAT(kVerl.Coordinate(0, "cp").status(), Fails(absl::StatusCode::kNotFound, {"'cp'", "tp 2, dp 2, pp 2"}));
  EXPECT_THAT(kVerl.Coordinates(8).status(), Fails(absl::StatusCode::kOutOfRange, {"rank 8", "mesh of 8"}));
  EXPECT_THAT(kVerl.GroupOf(-1, {}).status(), Fails(absl::StatusCode::kOutOfRange, {"rank -1", "mesh of 8"}));
  EXPECT_THAT(kVerl.RankAt(std::vector<int64_t>{0, 2, 0}).status(),
              Fails(absl::StatusCode::kOutOfRange, {"coordinate 2", "'dp'", "size is 2"}));
  EXPECT_THAT(kVerl.RankAt(std::vector<int64_t>{0, 1}).status().message(), HasSubstr("has 3 coordinates, not 2"));
}

}  // namespace
}  // namespace tdock::runtime
