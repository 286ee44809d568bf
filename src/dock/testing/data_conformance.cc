// Partitions, consumers, puts and reads.
#include "dock/testing/conformance.h"

namespace tdock::dock {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- Partitions and consumers.

TEST_P(DockConformance, CreatingAPartitionAgainIsANoOpOrNamesTheDifference) {
  Create({.group_size = 2});
  Create({.group_size = 2});
  PartitionOptions other{.name = kPartition, .columns = {{"a", ColumnType::Bytes()}}, .retain_for = {"x"}};
  EXPECT_THAT(dock_->CreatePartition(other), Fails(Code::kAlreadyExists, {"columns", "group_size", "retain_for"}));
  EXPECT_THAT(*dock_->ListPartitions(), ElementsAre(kPartition));
}

TEST_P(DockConformance, RefusesPartitionsThatMakeNoSense) {
  const auto refused = [&](PartitionOptions options) {
    return dock_->CreatePartition(options).code() == Code::kInvalidArgument;
  };
  const ColumnSpec a{"a", ColumnType::Dense(DType::kF32)};
  EXPECT_TRUE(refused({.name = "", .columns = {a}}));
  EXPECT_TRUE(refused({.name = std::string(256, 'x'), .columns = {a}}));
  EXPECT_TRUE(refused({.name = "new\nline", .columns = {a}}));
  EXPECT_TRUE(refused({.name = std::string("nul\0", 4), .columns = {a}}));
  EXPECT_TRUE(refused({.name = "\xc3(", .columns = {a}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {a, a}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {{"", a.type}}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {{"x", ColumnType::Dense(DType::kF32, {-1})}}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {{"x", ColumnType::Ragged(DType::kF32, {int64_t{1} << 62})}}}));
  EXPECT_TRUE(refused({.name = "p", .columns = {a}, .group_size = 0}));
  EXPECT_TRUE(refused({.name = "p", .columns = {a}, .retain_for = {"x", "x"}}));
  EXPECT_THAT(*dock_->ListPartitions(), IsEmpty());
  EXPECT_EQ(dock_->CreatePartition({.name = "prüfung 試", .columns = {a}}), absl::OkStatus());
}

TEST_P(DockConformance, RegisteringAgainIsANoOpOrNamesTheDifference) {
  Create();
  const ConsumerOptions options{.name = "x", .reads = {"a"}, .writes = {"b"}};
  Register(options);
  Register(options);
  ConsumerOptions other = options;
  other.reads = {"c"};
  other.unit = Unit::kGroup;
  EXPECT_THAT(dock_->RegisterConsumer(kPartition, other), Fails(Code::kAlreadyExists, {"reads, unit", "reads 'a'"}));
}

TEST_P(DockConformance, RefusesConsumersThatMakeNoSense) {
  Create();
  const auto code = [&](ConsumerOptions options) { return dock_->RegisterConsumer(kPartition, options).code(); };
  EXPECT_EQ(code({.name = "", .reads = {"a"}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = {"a", "a"}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = {"d"}}), Code::kNotFound);
  EXPECT_EQ(code({.name = "x", .writes = {"d"}}), Code::kNotFound);
  EXPECT_EQ(code({.name = "x", .lease_duration = absl::ZeroDuration()}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .max_deliveries = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .unit = static_cast<Unit>(7)}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .sampler = static_cast<Sampler>(7)}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = {"a"}, .sampler = Sampler::kLengthBalanced}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = {"a"}, .length_column = "a"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = {"a"}, .length_column = "b"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .sampler = Sampler::kCustom}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .custom_sampler = "s"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .sampler = Sampler::kCustom, .custom_sampler = "nobody's"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .ranks = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .reads = std::vector<std::string>(251, "a")}), Code::kInvalidArgument);
  EXPECT_THAT(Status().consumers, IsEmpty());
}

TEST_P(DockConformance, UnknownNamesAreNotFoundAndTheMessageListsTheKnown) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  EXPECT_THAT(dock_->Seal("other"), Fails(Code::kNotFound, {"'other'", "train"}));
  EXPECT_THAT(dock_->GetConsumerStatus(kPartition, "y").status(), Fails(Code::kNotFound, {"'y'", "'x'"}));
  EXPECT_THAT(TryTake("y", 1, 1).status(), Fails(Code::kNotFound, {"'y'", "'x'"}));
  EXPECT_THAT(Put(Floats({{"d", {1}}})), Fails(Code::kNotFound, {"'d'", "'a', 'b', 'c'"}));
  EXPECT_THAT(Fill({7}, {{"a", {1}}}), Fails(Code::kNotFound, {"no row 7"}));
  EXPECT_THAT(dock_->Fetch({.partition = kPartition, .rows = {7}, .columns = {"a"}}).status(),
              Fails(Code::kNotFound, {"no row 7"}));
  EXPECT_THAT(Complete(3), Fails(Code::kNotFound, {"no lease 3"}));
  EXPECT_THAT(Clear({7}).status(), Fails(Code::kNotFound, {"no row 7"}));
  EXPECT_THAT(dock_->Clear({.partition = kPartition, .groups = {7}}).status(), Fails(Code::kNotFound, {"group 7"}));
  EXPECT_EQ(dock_->DropPartition("other").code(), Code::kNotFound);
  EXPECT_EQ(Status().rows, 0);
}

TEST_P(DockConformance, PartitionsAreApart) {
  Create();
  ASSERT_EQ(dock_->CreatePartition({.name = "eval", .columns = {{"a", ColumnType::Bytes()}}}), absl::OkStatus());
  PutFloats({{"a", {1}}});
  EXPECT_EQ(dock_->GetStatus("eval")->rows, 0);
  EXPECT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  EXPECT_THAT(Put(Floats({{"a", {1}}})), Fails(Code::kNotFound, {"'train'", "eval"}));
  EXPECT_THAT(*dock_->ListPartitions(), ElementsAre("eval"));
}

// ---- Puts and reads.

TEST_P(DockConformance, ReadsBackWhatWasPutInEveryKindOfColumn) {
  Create({.columns = {{"dense", ColumnType::Dense(DType::kI32, {2})},
                      {"ragged", ColumnType::Ragged(DType::kI64)},
                      {"bytes", ColumnType::Bytes()},
                      {"none", ColumnType::Dense(DType::kF32, {0})}}});
  // Large puts and small ones lie differently in memory.
  for (const int64_t size : {1, 3, 40'000}) {
    PutRequest request{.partition = kPartition};
    const std::vector<int64_t> longs(static_cast<size_t>(size), size);
    ASSERT_EQ(request.batch.Add("dense", Column::FromValues<int32_t>({1, 2, 3, 4}, {2})), absl::OkStatus());
    ASSERT_EQ(request.batch.Add("ragged", Column::FromRows<int64_t>({{}, longs})), absl::OkStatus());
    ASSERT_EQ(request.batch.Add("bytes", Column::FromStrings(std::vector<std::string>{std::string(1'000, 'x'), ""})),
              absl::OkStatus());
    ASSERT_EQ(request.batch.Add("none", Column::MakeDense(DType::kF32, {0}, 2, Buffer())), absl::OkStatus());
    const std::vector<RowId> rows = PutNew(request);
    const Rows read = *dock_->Fetch(
        {.partition = kPartition, .rows = {rows[1], rows[0]}, .columns = {"bytes", "dense", "ragged", "none"}});
    EXPECT_THAT(*read.Get<int32_t>(0, "dense"), ElementsAre(3, 4));
    EXPECT_THAT(*read.Get<int32_t>(1, "dense"), ElementsAre(1, 2));
    EXPECT_TRUE(std::ranges::equal(*read.Get<int64_t>(0, "ragged"), longs));
    EXPECT_THAT(*read.Get<int64_t>(1, "ragged"), IsEmpty());
    EXPECT_EQ(*read.Text(0, "bytes"), "");
    EXPECT_EQ(*read.Text(1, "bytes"), std::string(1'000, 'x'));
    EXPECT_THAT(*read.Get<float>(1, "none"), IsEmpty());

    const Batch batch = *read.ToBatch();
    EXPECT_THAT(*batch.Values<int32_t>("dense"), ElementsAre(3, 4, 1, 2));
    EXPECT_THAT(batch.Find("ragged")->offsets(), ElementsAre(0, size, size));
    EXPECT_EQ(batch.columns()[0].name, "bytes");
  }
}

TEST_P(DockConformance, TextColumnsTakeBytesAndBytesColumnsTakeText) {
  Create({.columns = {{"text", ColumnType::Text()}, {"bytes", ColumnType::Bytes()}}, .growing = true});
  const auto words = [](DType dtype) {
    const std::vector<int64_t> offsets = {0, 5};
    return Column::MakeBytes(Buffer::CopyOf(std::as_bytes(std::span("seven", 5))),
                             Buffer::CopyOf(std::as_bytes(std::span(offsets))), dtype);
  };
  PutRequest request{.partition = kPartition};
  ASSERT_EQ(request.batch.Add("text", words(DType::kU8)), absl::OkStatus());
  ASSERT_EQ(request.batch.Add("bytes", words(DType::kI8)), absl::OkStatus());
  ASSERT_EQ(request.batch.Add("more", words(DType::kI8)), absl::OkStatus());
  const std::vector<RowId> ids = PutNew(request);
  const Rows rows = *dock_->Fetch({.partition = kPartition, .rows = ids, .columns = {"text", "bytes", "more"}});
  EXPECT_EQ(rows.columns()[0].type, ColumnType::Text());
  EXPECT_EQ(rows.columns()[1].type, ColumnType::Bytes());
  EXPECT_EQ(rows.columns()[2].type, ColumnType::Text());
  EXPECT_EQ(*rows.Text(0, "text"), "seven");
  EXPECT_EQ(rows.ToColumn("more")->type(), ColumnType::Text());
}

TEST_P(DockConformance, TypedReadsNameTheColumnAndWhatItHolds) {
  Create();
  const Rows rows = *dock_->Fetch(
      {.partition = kPartition, .rows = PutFloats({{"a", {1}}}), .columns = {"a"}, .deadline = absl::InfinitePast()});
  EXPECT_THAT(rows.Get<int64_t>(0, "a").status(), Fails(Code::kInvalidArgument, {"'a'", "holds float32[], not int64"}));
  EXPECT_THAT(rows.Get<float>(0, "b").status(), Fails(Code::kNotFound, {"'b'", "have a"}));
  EXPECT_THAT(rows.Get<float>(1, "a").status(), Fails(Code::kOutOfRange, {"row 1 of 1"}));
  EXPECT_THAT(rows.Text(0, "a").status(), Fails(Code::kInvalidArgument, {"not bytes"}));
}

TEST_P(DockConformance, RowIdsAscendAndAreNeverUsedAgain) {
  Create();
  const std::vector<RowId> first = PutFloats({{"a", {1, 2}}});
  EXPECT_EQ(first[1], first[0] + 1);
  ASSERT_EQ(*ClearEverything(), 2);
  EXPECT_GT(PutFloats({{"a", {3}}})[0], first[1]);
}

TEST_P(DockConformance, APutMayFillManyRowsAtOnce) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  std::vector<float> values(5'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  PutFloats({{"a", {-1}}});
  const std::vector<RowId> rows = PutFloats({{"a", values}});
  const Taken taken = Take("x", 5'001);
  EXPECT_EQ(taken.rows.ids().back(), rows.back());
  EXPECT_EQ(taken.rows.Get<float>(4'000, "a")->front(), 3'999);
  EXPECT_EQ(taken.rows.ToColumn("a")->Values<float>()->back(), 4'999);
}

TEST_P(DockConformance, APutIsAllOrNothing) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_EQ(Fill({rows[0]}, {{"b", {1}}}), absl::OkStatus());
  // Row 1 and column c would fit.
  EXPECT_THAT(Fill({rows[1], rows[0]}, {{"c", {5, 6}}, {"b", {7, 8}}}),
              Fails(Code::kAlreadyExists, {"'b' of row " + std::to_string(rows[0])}));
  EXPECT_EQ(Status().columns[1].ready_cells, 1);
  EXPECT_EQ(Status().columns[2].ready_cells, 0);
  EXPECT_EQ(Read(rows[0], "b"), 1);
}

TEST_P(DockConformance, RefusesWhatDoesNotFitTheSchemaAndSaysWhatWould) {
  Create();
  PutRequest request{.partition = kPartition};
  ASSERT_EQ(request.batch.Add("a", Column::FromValues<float>({1})), absl::OkStatus());
  ASSERT_EQ(request.batch.Add("b", Column::FromValues<double>({1})), absl::OkStatus());
  EXPECT_THAT(Put(request), Fails(Code::kInvalidArgument, {"'b' holds float32[]; given float64[]"}));
  PutRequest wide{.partition = kPartition};
  ASSERT_EQ(wide.batch.Add("a", Column::FromValues<float>({1, 2}, {2})), absl::OkStatus());
  EXPECT_THAT(Put(wide), Fails(Code::kInvalidArgument, {"'a' holds float32[]; given float32[2]"}));
  EXPECT_THAT(Put(PutRequest{.partition = kPartition}), Fails(Code::kInvalidArgument, {"no rows"}));
  EXPECT_EQ(Status().rows, 0);
}

TEST_P(DockConformance, RefusesRowListsThatDoNotFitTheBatch) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_THAT(Fill({rows[0]}, {{"b", {1, 2}}}), Fails(Code::kInvalidArgument, {"2 rows", "1 row ids"}));
  EXPECT_THAT(Fill({rows[1], rows[1]}, {{"b", {1, 2}}}), Fails(Code::kInvalidArgument, {"twice"}));
  EXPECT_THAT(Fill({rows[0]}, {}), Fails(Code::kInvalidArgument, {"no columns"}));
  EXPECT_THAT(Fill({}, {{"b", {1}}}), Fails(Code::kInvalidArgument, {"no rows"}));
  FillRequest keep = Cells({{"b", {1}}});
  keep.rows = {rows[0]};
  keep.keep = true;
  EXPECT_THAT(Put(keep), Fails(Code::kInvalidArgument, {"keep", "lease"}));
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
}

TEST_P(DockConformance, AGrowingPartitionTakesColumnsAsTheyCome) {
  Create({.growing = true});
  Register({.name = "x", .reads = {"late"}, .writes = {"later"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  EXPECT_FALSE(Status().columns[0].typed);
  EXPECT_EQ(Fill(rows, {{"late", {5}}}), absl::OkStatus());
  EXPECT_EQ(Take("x", 1).rows.Get<float>(0, "late")->front(), 5);
  PutRequest other{.partition = kPartition};
  ASSERT_EQ(other.batch.Add("late", Column::FromValues<int64_t>({1})), absl::OkStatus());
  EXPECT_THAT(Put(other), Fails(Code::kInvalidArgument, {"'late' holds float32[]; given int64[]"}));
  PutRequest odd{.partition = kPartition};
  ASSERT_EQ(odd.batch.Add("tab\t", Column::FromValues<int64_t>({1})), absl::OkStatus());
  EXPECT_THAT(Put(odd), Fails(Code::kInvalidArgument, {"control character"}));
}

TEST_P(DockConformance, OverwritingMakesANewCellAndLeavesTheRestAsItWas) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "y", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const Taken old = Take("x", 1);
  ASSERT_EQ(Complete(old.lease), absl::OkStatus());
  FillRequest overwrite = Cells({{"a", {2}}});
  overwrite.rows = rows;
  EXPECT_EQ(Put(overwrite).code(), Code::kAlreadyExists);
  overwrite.overwrite = true;
  EXPECT_EQ(Put(overwrite), absl::OkStatus());
  EXPECT_EQ(Read(rows[0], "a"), 2);
  EXPECT_EQ(old.rows.Get<float>(0, "a")->front(), 1);
  EXPECT_EQ(StatusOf("x").done, 1);
  EXPECT_EQ(Take("y", 1).rows.Get<float>(0, "a")->front(), 2);
  EXPECT_EQ(Status().columns[0].ready_cells, 1);
}

TEST_P(DockConformance, CellsCarryTheVersionOfTheWeightsThatMadeThem) {
  Create();
  PutRequest request = Floats({{"a", {1}}});
  const RowId plain = PutNew(request)[0];
  request.weights_version = 7;
  const RowId newer = PutNew(request)[0];
  request.weights_version = 6;
  const RowId late = PutNew(request)[0];
  const Rows rows = *dock_->Fetch({.partition = kPartition, .rows = {plain, newer, late}, .columns = {"a"}});
  EXPECT_EQ(*rows.WeightsVersion(0, "a"), kNoWeightsVersion);
  EXPECT_EQ(*rows.WeightsVersion(1, "a"), 7);
  EXPECT_EQ(*rows.WeightsVersion(2, "a"), 6);
}

TEST_P(DockConformance, AFetchReadsRowsInTheOrderOfTheRequest) {
  // The example of the first Transfer Dock: rows 0, 1, 2 and 4 hold A, B, C, D; rows 4, 0 give D, A.
  Create();
  const std::vector<RowId> rows = PutFloats({{"b", {0, 0, 0, 0, 0}}});
  ASSERT_EQ(Fill({rows[0], rows[1], rows[2], rows[4]}, {{"a", {'A', 'B', 'C', 'D'}}}), absl::OkStatus());
  const Rows read = *dock_->Fetch({.partition = kPartition, .rows = {rows[4], rows[0], rows[4]}, .columns = {"a"}});
  EXPECT_THAT(*read.ToColumn("a")->Values<float>(), ElementsAre('D', 'A', 'D'));
}

TEST_P(DockConformance, RefusesFetchesThatMakeNoSense) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const auto code = [&](std::vector<RowId> of, std::vector<std::string> columns) {
    return dock_->Fetch({.partition = kPartition, .rows = std::move(of), .columns = std::move(columns)})
        .status()
        .code();
  };
  EXPECT_EQ(code({}, {"a"}), Code::kInvalidArgument);
  EXPECT_EQ(code(rows, {}), Code::kInvalidArgument);
  EXPECT_EQ(code(rows, {"a", "a"}), Code::kInvalidArgument);
  EXPECT_EQ(code(rows, {"z"}), Code::kNotFound);
}

}  // namespace tdock::dock
