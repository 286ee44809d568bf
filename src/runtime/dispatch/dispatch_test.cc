#include "runtime/dispatch/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "runtime/dispatch/row_weights.h"

namespace tdock::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Lists = std::vector<std::vector<int64_t>>;

// Rows first, first + 1, …
MetaBatch Numbered(int64_t rows, int64_t first = 0, Meta meta = {}) {
  std::vector<int64_t> ids(static_cast<size_t>(rows));
  std::iota(ids.begin(), ids.end(), first);
  Batch batch;
  EXPECT_TRUE(batch.Add("id", Column::FromValues(ids)).ok());
  return MetaBatch(std::move(batch), std::move(meta));
}

std::vector<int64_t> Ids(const Value& value) {
  if (const RowsRef* ref = value.As<RowsRef>()) return {ref->rows.begin(), ref->rows.end()};
  const auto ids = value.As<MetaBatch>()->columns().Values<int64_t>("id");
  return {ids->begin(), ids->end()};
}

std::vector<float> Weights(const Value& value) {
  const Column column = *RowWeights(*value.As<MetaBatch>());
  return {column.Values<float>()->begin(), column.Values<float>()->end()};
}

// A Value, because {Letters()} would otherwise be the list itself rather than a list of it.
Value Letters(absl::string_view text) {
  Value::List list;
  for (const char letter : text) list.emplace_back(std::string(1, letter));
  return list;
}

// Four workers; and eight with verl's example mesh, TP 2 · DP 2 · PP 2.
const GroupShape kFour{.ranks = 4};

GroupShape Shaped(const MeshSizes& sizes, const std::string& name = "megatron") {
  const Mesh mesh = *Mesh::Of(sizes);
  return {.ranks = mesh.ranks(), .meshes = {{name, mesh}}};
}

DividedCall Divided(const Dispatch& dispatch, const std::vector<Value>& arguments, const GroupShape& shape) {
  absl::StatusOr<DividedCall> call = DividedCall::Of({.name = "m", .dispatch = dispatch}, arguments, shape);
  EXPECT_TRUE(call.ok()) << call.status();
  return *std::move(call);
}

std::string ErrorOf(const Dispatch& dispatch, const std::vector<Value>& arguments, const GroupShape& shape,
                    Execute execute = Execute::kAll) {
  const auto call = DividedCall::Of({.name = "m", .dispatch = dispatch, .execute = execute}, arguments, shape);
  return std::string(call.status().message());
}

// What each rank gets as its argument `argument`.
std::vector<Value> Given(const DividedCall& call, size_t argument = 0) {
  std::vector<Value> given;
  for (const std::vector<Value>& of_rank : call.arguments()) given.push_back(of_rank.at(argument));
  return given;
}

Lists GivenRows(const DividedCall& call, size_t argument = 0) {
  Lists rows;
  for (const Value& value : Given(call, argument)) rows.push_back(Ids(value));
  return rows;
}

TEST(Dispatch, OneToAllRepeatsAndLists) {
  const DividedCall call = Divided(Mode::kOneToAll, {"x", Letters("abcd")}, kFour);
  EXPECT_THAT(Given(call), ElementsAre("x", "x", "x", "x"));
  EXPECT_THAT(Given(call, 1), testing::Each(Letters("abcd")));
  EXPECT_EQ(*call.Collect({1, 2, 3, 4}), Value(Value::List{1, 2, 3, 4}));
}

TEST(Dispatch, AllToAllSpreadsListsOfThatLengthAndRepeatsTheRest) {
  const DividedCall call = Divided(Mode::kAllToAll, {Letters("abcd"), Letters("abc"), 7}, kFour);
  EXPECT_THAT(Given(call), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Given(call, 1), testing::Each(Letters("abc")));
  EXPECT_THAT(Given(call, 2), ElementsAre(7, 7, 7, 7));
  EXPECT_EQ(*call.Collect({1, 2, 3, 4}), Value(Value::List{1, 2, 3, 4}));
}

TEST(Dispatch, DpComputeGivesElementToRank) {
  const DividedCall call = Divided(Mode::kDpCompute, {Letters("abcd"), Value::List{1, 2, 3, 4}}, kFour);
  EXPECT_THAT(Given(call), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Given(call, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(*call.Collect({1, 2, 3, 4}), Value(Value::List{1, 2, 3, 4}));
  EXPECT_THAT(ErrorOf(Mode::kDpCompute, {Letters("abcd"), Letters("abc")}, kFour),
              Mentions({"'m' (DP_COMPUTE)", "argument 1", "list of 4", "list of 3"}));
  EXPECT_THAT(ErrorOf(Mode::kDpCompute, {5}, kFour), HasSubstr("given an int64"));
}

TEST(Dispatch, DpComputeProtoCutsConsecutiveRowsAndConcatenates) {
  const MetaBatch batch = Numbered(8, 0, {{"temperature", 0.5}});
  const DividedCall call = Divided(Mode::kDpComputeProto, {batch}, kFour);
  EXPECT_EQ(GivenRows(call), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(call.arguments()[3][0].As<MetaBatch>()->meta(), batch.meta());
  EXPECT_EQ(*call.Collect(Given(call))->As<MetaBatch>(), batch);
  EXPECT_THAT(ErrorOf(Mode::kDpComputeProto, {Numbered(7)}, kFour),
              Mentions({"'m' (DP_COMPUTE_PROTO)", "argument 0", "7 rows", "4 equal", "multiple of 4"}));
  EXPECT_THAT(ErrorOf(Mode::kDpComputeProto, {Numbered(8), "f"}, kFour),
              Mentions({"'m' (DP_COMPUTE_PROTO)", "argument 1", "batch", "a string"}));
}

TEST(Dispatch, DpComputeProtoWithFuncRepeatsTheFirst) {
  const DividedCall call = Divided(Mode::kDpComputeProtoWithFunc, {"max", Numbered(4), Numbered(8)}, kFour);
  EXPECT_THAT(Given(call), ElementsAre("max", "max", "max", "max"));
  EXPECT_EQ(GivenRows(call, 1), (Lists{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(GivenRows(call, 2), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Ids(*call.Collect(Given(call, 1))), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(Dispatch, DpComputeMetricCutsAndLists) {
  const DividedCall call = Divided(Mode::kDpComputeMetric, {Numbered(8)}, kFour);
  EXPECT_EQ(GivenRows(call), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(*call.Collect({0.5, 1.5, 2.5, 3.5}), Value(Value::List{0.5, 1.5, 2.5, 3.5}));
}

TEST(Dispatch, NdMeshRepeatsOverReplicasAndCollectsFromTheLastStage) {
  for (const Dispatch& dispatch : {NdMesh("megatron"), Dispatch(Mode::kMegatronComputeProto)}) {
    const DividedCall call = Divided(dispatch, {Numbered(8)}, Shaped({.tp = 2, .pp = 2, .dp = 2}));
    const std::vector<int64_t> first = {0, 1, 2, 3}, second = {4, 5, 6, 7};
    EXPECT_EQ(GivenRows(call), (Lists{first, first, second, second, first, first, second, second}));
    std::vector<Value> results;
    for (int64_t rank = 0; rank < 8; ++rank) results.emplace_back(Numbered(1, rank));
    EXPECT_EQ(Ids(*call.Collect(results)), (std::vector<int64_t>{4, 6}));  // tp 0, pp last
  }
}

TEST(Dispatch, NdMeshIgnoresTheResultsOfOtherContextRanks) {
  const DividedCall call = Divided(NdMesh("m"), {Numbered(2)}, Shaped({.tp = 1, .cp = 2, .pp = 1, .dp = 2}, "m"));
  EXPECT_EQ(GivenRows(call), (Lists{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(Ids(*call.Collect({Numbered(1, 10), 5, Numbered(1, 12), Value()})), (std::vector<int64_t>{10, 12}));
}

TEST(Dispatch, MeshesAreFoundByNameAndNeedADataParallelDimension) {
  GroupShape shape = Shaped({.dp = 4}, "actor");
  EXPECT_THAT(ErrorOf(NdMesh("critic"), {Numbered(4)}, shape), Mentions({"'m' (ND_MESH)", "'critic'", "'actor'"}));
  EXPECT_THAT(ErrorOf(NdMesh("critic"), {Numbered(4)}, kFour), Mentions({"'critic'", "none"}));
  shape.meshes.emplace("fsdp", *Mesh::Of(4, {{"fsdp", 4}}));
  EXPECT_THAT(ErrorOf(NdMesh("fsdp"), {Numbered(4)}, shape), Mentions({"(fsdp 4)", "'dp'"}));
  shape.ranks = 2;
  EXPECT_THAT(ErrorOf(NdMesh("actor"), {Numbered(4)}, shape), HasSubstr("has 4 ranks, the group 2"));
}

TEST(Dispatch, MegatronComputeGivesElementToDataParallelRank) {
  const DividedCall call = Divided(Mode::kMegatronCompute, {Letters("ab")}, Shaped({.tp = 2, .pp = 2, .dp = 2}));
  EXPECT_THAT(Given(call), ElementsAre("a", "a", "b", "b", "a", "a", "b", "b"));
  EXPECT_EQ(*call.Collect({0, 1, 2, 3, 4, 5, 6, 7}), Value(Value::List{4, 6}));
  EXPECT_THAT(ErrorOf(Mode::kMegatronCompute, {Letters("abc")}, Shaped({.tp = 2, .pp = 2, .dp = 2})),
              Mentions({"list of 2", "list of 3"}));
}

TEST(Dispatch, MegatronPpAsDpDividesOverStagesToo) {
  const DividedCall call = Divided(Mode::kMegatronPpAsDp, {Letters("ABCDEFGH")}, Shaped({.pp = 2, .dp = 4}));
  // Ranks 0 … 3 are stage 0.
  EXPECT_THAT(Given(call), ElementsAre("A", "C", "E", "G", "B", "D", "F", "H"));
  EXPECT_EQ(*call.Collect(Given(call)), Letters("ABCDEFGH"));

  // tp 2, cp 2, dp 2, pp 2: chunk (cp·2 + dp)·2 + pp.
  const GroupShape shape = Shaped({.tp = 2, .cp = 2, .pp = 2, .dp = 2});
  const DividedCall rows = Divided(Mode::kMegatronPpAsDpProto, {Numbered(8)}, shape);
  EXPECT_EQ(GivenRows(rows), (Lists{{0}, {0}, {4}, {4}, {2}, {2}, {6}, {6}, {1}, {1}, {5}, {5}, {3}, {3}, {7}, {7}}));
  EXPECT_EQ(Ids(*rows.Collect(Given(rows))), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Dispatch, MegatronPpOnlyListsAResultOfEachStage) {
  const DividedCall call = Divided(Mode::kMegatronPpOnly, {"names"}, Shaped({.tp = 2, .pp = 2, .dp = 2}));
  EXPECT_THAT(Given(call), testing::Each(Value("names")));
  EXPECT_EQ(*call.Collect({0, 1, 2, 3, 4, 5, 6, 7}), Value(Value::List{0, 4}));
}

TEST(Dispatch, RankZeroRunsOnOneRankWithTheArgumentsAsTheyAre) {
  const MethodSpec method{.name = "m", .dispatch = Mode::kOneToAll, .execute = Execute::kRankZero};
  const auto call = DividedCall::Of(method, {Letters("abcd")}, kFour);
  EXPECT_EQ(call->arguments(), (std::vector<std::vector<Value>>{{Letters("abcd")}}));
  EXPECT_EQ(*call->Collect({5}), Value(5));
  EXPECT_THAT(ErrorOf(Mode::kDpComputeProto, {Numbered(4)}, kFour, Execute::kRankZero),
              Mentions({"RANK_ZERO", "ONE_TO_ALL"}));
}

TEST(Dispatch, RunsModesOfItsUsers) {
  const UserMode zigzag{.name = "ZIGZAG",
                        .split =
                            [](const std::vector<Value>& arguments, const GroupShape& shape) {
                              std::vector<std::vector<Value>> of_rank(static_cast<size_t>(shape.ranks));
                              const Value::List& list = *arguments[0].As<Value::List>();
                              for (size_t i = 0; i < list.size(); ++i) of_rank[of_rank.size() - 1 - i] = {list[i]};
                              return absl::StatusOr<std::vector<std::vector<Value>>>(std::move(of_rank));
                            },
                        .collect = [](std::vector<Value> results, const GroupShape& shape) -> absl::StatusOr<Value> {
                          if (results[0] == Value("?")) return absl::InvalidArgumentError("no");
                          return Value(Value::List{results[0], shape.ranks});
                        }};
  const DividedCall call = Divided(zigzag, {Letters("abcd")}, kFour);
  EXPECT_THAT(Given(call), ElementsAre("d", "c", "b", "a"));
  EXPECT_EQ(*call.Collect({"x", "y", "z", "w"}), Value(Value::List{"x", 4}));
  EXPECT_THAT(call.Collect({"?", "y", "z", "w"}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'m' (ZIGZAG)", ": no"}));

  UserMode wrong = zigzag;
  wrong.split = [](const auto&, const auto&) { return std::vector<std::vector<Value>>(3); };
  EXPECT_THAT(ErrorOf(wrong, {1}, kFour), Mentions({"'m' (ZIGZAG)", "3 ranks", "are 4"}));
}

TEST(Dispatch, ModesHaveVerlsNames) {
  for (size_t i = 0; i < kModeRules.size(); ++i) EXPECT_EQ(*ModeNamed(kModeRules[i].name), static_cast<Mode>(i));
  EXPECT_EQ(RulesOf(Mode::kMegatronPpAsDpProto).name, "MEGATRON_PP_AS_DP_PROTO");
  EXPECT_THAT(ModeNamed("DP_COMPUTE_PROTOS").status().message(), HasSubstr("did you mean DP_COMPUTE_PROTO?"));
}

TEST(Dispatch, CollectsOnlyWhatCanBeConcatenated) {
  const DividedCall call = Divided(Mode::kDpComputeProto, {Numbered(2)}, {.ranks = 2});
  EXPECT_TRUE(call.Collect({Value(), Value()})->IsNothing());
  EXPECT_THAT(call.Collect({Numbered(1), 3}).status().message(),
              Mentions({"'m' (DP_COMPUTE_PROTO)", "batch of 1 row", "an int64"}));
  EXPECT_THAT(call.Collect({Value()}).status().message(), Mentions({"1 results", "2 ranks"}));
  EXPECT_FALSE(call.Collect({Numbered(1, 0, {{"step", 1}}), Numbered(1, 0, {{"step", 2}})}).ok());
}

TEST(Dispatch, MetricsOfAllRanksAreKept) {
  const DividedCall call = Divided(Mode::kDpComputeProto, {Numbered(2)}, {.ranks = 2});
  const auto metrics = [](double loss) { return MetaBatch({}, {{"metrics", Meta{{"loss", loss}}}}); };
  const absl::StatusOr<Value> result = call.Collect({metrics(0.5), metrics(1.5)});
  EXPECT_EQ(result->As<MetaBatch>()->meta(), (Meta{{"metrics", Meta{{"loss", MetaValue::List{0.5, 1.5}}}}}));
}

TEST(Dispatch, ABatchOfMetaOnlyGoesToAll) {
  const MetaBatch meta({}, {{"step", 3}});
  for (const bool pad : {false, true}) {
    const DividedCall call = Divided({Mode::kDpComputeProto, pad}, {Numbered(5 - (pad ? 0 : 1)), meta}, kFour);
    EXPECT_THAT(Given(call, 1), testing::Each(Value(meta)));
  }
}

TEST(Dispatch, RefusesWhatIsTooDeep) {
  Value deep = 1;
  while (deep.depth() < Value::kMaxDepth) deep = Value::List{deep};
  const DividedCall call = Divided(Mode::kOneToAll, {deep}, kFour);
  EXPECT_THAT(ErrorOf(Mode::kOneToAll, {Value(Value::List{deep})}, kFour),
              Mentions({"argument 0 is 65", "at most 64"}));
  EXPECT_FALSE(call.Collect({1, 1, 1, deep}).ok());  // the list of them would be
}

// ---- Rows of a dock.

RowsRef Reference(std::vector<uint64_t> rows) {
  return {.partition = "train", .rows = std::move(rows), .columns = {"id"}, .meta = {{"t", 1}}};
}

TEST(Dispatch, RowsOfADockAreCutAndConcatenatedByNumber) {
  const RowsRef rows = Reference({3, 1, 4, 1, 5, 9, 2, 6});
  const DividedCall call = Divided(Mode::kDpComputeProto, {rows}, kFour);
  EXPECT_EQ(*call.arguments()[1][0].As<RowsRef>(), Reference({4, 1}));
  EXPECT_EQ(*call.Collect(Given(call)), Value(rows));
  EXPECT_THAT(ErrorOf(Mode::kDpComputeProto, {Reference({1, 2})}, kFour), Mentions({"2 rows", "4 equal"}));

  RowsRef other = Reference({1});
  other.partition = "test";
  EXPECT_THAT(call.Collect({Reference({1}), other, Reference({1}), Reference({1})}).status().message(),
              Mentions({"result 0", "'train'", "result 1 of 'test'"}));
  other = Reference({1});
  other.columns = {"id", "reward"};
  EXPECT_THAT(call.Collect({Reference({1}), other, Reference({1}), Reference({1})}).status().message(),
              HasSubstr("result 0 has columns id, result 1 id, reward"));
}

// ---- Padding.

constexpr Dispatch kPadded{Mode::kDpComputeProto, true};

TEST(Padding, RepeatsRowsMarksThemAndTakesThemOutAgain) {
  const MetaBatch batch = Numbered(5);
  const DividedCall call = Divided(kPadded, {batch}, kFour);
  EXPECT_EQ(GivenRows(call), (Lists{{0, 1}, {2, 3}, {4, 0}, {1, 2}}));
  EXPECT_THAT(Weights(Given(call)[0]), ElementsAre(1, 1));
  EXPECT_THAT(Weights(Given(call)[2]), ElementsAre(1, 0));
  EXPECT_THAT(Weights(Given(call)[3]), ElementsAre(0, 0));
  EXPECT_EQ(batch, Numbered(5));
  EXPECT_EQ(*call.Collect(Given(call))->As<MetaBatch>(), batch);
}

TEST(Padding, LeavesRowsThatDivideAsTheyAre) {
  const DividedCall call = Divided(kPadded, {Numbered(8)}, kFour);
  EXPECT_EQ(*call.arguments()[0][0].As<MetaBatch>(), Numbered(2));
}

TEST(Padding, AcceptsResultsOfAllRowsOfRealRowsAndOfMarkedRows) {
  const DividedCall call = Divided(kPadded, {Numbered(5)}, kFour);
  std::vector<Value> all, real, repeated;
  for (const Value& chunk : Given(call)) {
    const MetaBatch& batch = *chunk.As<MetaBatch>();
    all.emplace_back(*batch.Select({"id"}));
    real.emplace_back(*RealRows(batch));
    repeated.emplace_back(*batch.Repeat(2, RepeatOrder::kTiled));
  }
  EXPECT_EQ(*call.Collect(all)->As<MetaBatch>(), Numbered(5));
  EXPECT_EQ(*call.Collect(real)->As<MetaBatch>(), Numbered(5));
  EXPECT_THAT(Ids(*call.Collect(repeated)), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3, 4, 4));
  all[1] = Numbered(3);
  EXPECT_THAT(call.Collect(all).status().message(),
              Mentions({"'m' (DP_COMPUTE_PROTO)", "rank 1", "3 rows", "to 2 rows", "2 are real", "'row_weights'"}));
}

TEST(Padding, KeepsTheMetricsOfRealRowsAndNoOthers) {
  const DividedCall call = Divided({Mode::kDpComputeMetric, true}, {Numbered(5)}, kFour);
  EXPECT_EQ(*call.Collect({0.0, 1.0, 2.0, 3.0}), Value(Value::List{0.0, 1.0, 2.0}));  // rank 3 has copies only
  const DividedCall most = Divided({Mode::kDpComputeMetric, true}, {Numbered(7)}, kFour);
  EXPECT_EQ(*most.Collect({0.0, 1.0, 2.0, 3.0}), Value(Value::List{0.0, 1.0, 2.0, 3.0}));
  const DividedCall proto = Divided(kPadded, {Numbered(1)}, {.ranks = 2});
  const auto metrics = [](double loss) { return MetaBatch({}, {{"metrics", Meta{{"loss", loss}}}}); };
  EXPECT_EQ(proto.Collect({metrics(0.5), metrics(1.5)})->As<MetaBatch>()->meta(),
            (Meta{{"metrics", Meta{{"loss", MetaValue::List{0.5}}}}}));
}

TEST(Padding, NeedsAsManyRowsInEachArgument) {
  EXPECT_THAT(ErrorOf(kPadded, {Numbered(5), Numbered(6)}, kFour),
              Mentions({"'m' (DP_COMPUTE_PROTO)", "argument 1", "6 rows", "it 5"}));
  const DividedCall both = Divided(kPadded, {Numbered(5), Reference({10, 11, 12, 13, 14})}, kFour);
  EXPECT_EQ(GivenRows(both, 1), (Lists{{10, 11}, {12, 13}, {14, 10}, {11, 12}}));
}

TEST(Padding, RefusesAMarkThatIsThere) {
  Batch batch = Numbered(5).columns();
  ASSERT_TRUE(batch.Add(kRowWeights, Column::FromValues(std::vector<float>(5, 1.0F))).ok());
  EXPECT_THAT(ErrorOf(kPadded, {MetaBatch(batch)}, kFour), HasSubstr("column 'row_weights'"));
  RowsRef rows = Reference({1, 2, 3});
  rows.real_rows = 2;
  EXPECT_THAT(ErrorOf(kPadded, {rows}, kFour), HasSubstr("padded before"));
}

TEST(Padding, MarksRowsOfADock) {
  const DividedCall call = Divided(NdMesh("m", true), {Reference({7, 8, 9})}, Shaped({.tp = 2, .dp = 2}, "m"));
  EXPECT_EQ(GivenRows(call), (Lists{{7, 8}, {7, 8}, {9, 7}, {9, 7}}));
  EXPECT_EQ(call.arguments()[2][0].As<RowsRef>()->real_rows, 1);
  EXPECT_EQ(*call.Collect(Given(call)), Value(Reference({7, 8, 9})));

  const RowFetcher fetch = [](const RowsRef& rows, absl::Time) -> absl::StatusOr<MetaBatch> {
    return Numbered(static_cast<int64_t>(rows.rows.size()), static_cast<int64_t>(rows.rows[0]));
  };
  const absl::StatusOr<MetaBatch> fetched =
      FetchRows(*call.arguments()[2][0].As<RowsRef>(), fetch, absl::InfiniteFuture());
  EXPECT_THAT(Weights(*fetched), ElementsAre(1, 0));
  EXPECT_EQ(fetched->meta(), (Meta{{"t", 1}}));
  EXPECT_EQ(*RealRows(*fetched)->columns().Values<int64_t>("id")->begin(), 9);
  EXPECT_EQ(RealRows(*fetched)->rows(), 1);
}

TEST(Padding, FetchingNeedsADockAndGivesAsManyRows) {
  EXPECT_THAT(FetchRows(Reference({1, 2}), {}, absl::InfiniteFuture()).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"2 rows", "'train'", "no dock"}));
  const RowFetcher one = [](const RowsRef&, absl::Time) -> absl::StatusOr<MetaBatch> { return Numbered(1); };
  EXPECT_THAT(FetchRows(Reference({1, 2}), one, absl::InfiniteFuture()).status(),
              Fails(absl::StatusCode::kInternal, {"2 rows", "'train'", "gave 1"}));
}

}  // namespace
}  // namespace tdock::runtime
