// Rows without cells, keys, tags, listing; optional columns; NaN.
#include <algorithm>
#include <limits>

#include "dock/testing/conformance.h"

namespace tdock::dock {

TEST_P(DockConformance, RowsCanBeMadeBeforeTheirCells) {
  Create({.group_size = 2});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  const std::vector<RowId> rows = PutNew({.partition = kPartition, .new_rows = 2, .groups = {7, 7}});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(StatusOf("x").waiting, 2);
  ASSERT_EQ(Fill(rows, {{"a", {1, 2}}}), absl::OkStatus());
  EXPECT_EQ(Ids(Take("x", 1)), rows);
  PutRequest both = Floats({{"a", {1}}});
  both.new_rows = 1;
  EXPECT_THAT(Put(both), Fails(Code::kInvalidArgument, {"new_rows is 1"}));
  EXPECT_EQ(Put({.partition = kPartition, .new_rows = -1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Put({.partition = kPartition, .new_rows = int64_t{1} << 40, .group_size = 1}).code(),
            Code::kInvalidArgument);
}

TEST_P(DockConformance, FindsManyKeysAtOnce) {
  Create({});
  constexpr int kRows = 2'000;
  PutRequest put{.partition = kPartition, .new_rows = kRows};
  for (int i = 0; i < kRows; ++i) put.keys.push_back(absl::StrCat("sample of some length ", i));
  std::vector<RowId> rows = PutNew(put);
  std::reverse(rows.begin(), rows.end());
  std::reverse(put.keys.begin(), put.keys.end());
  EXPECT_EQ(*dock_->FindRows(kPartition, put.keys), rows);
  put.keys.back() = "another";
  EXPECT_THAT(dock_->FindRows(kPartition, put.keys).status(), Fails(Code::kNotFound, {"key 'another'"}));
  EXPECT_TRUE(dock_->FindRows(kPartition, {})->empty());
}

TEST_P(DockConformance, ListsWhatAConsumerCouldTakeWithColumnsItDoesNotRead) {
  Create({});
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3, 4}}});
  ASSERT_EQ(Fill({rows[0], rows[2]}, {{"b", {1, 3}}}), absl::OkStatus());
  Take("x", 1);
  const auto list = [&](std::string ready_for, std::vector<std::string> having) {
    const absl::StatusOr<ListResult> listed =
        dock_->List({.partition = kPartition, .ready_for = std::move(ready_for), .having = std::move(having)});
    EXPECT_EQ(listed.status(), absl::OkStatus());
    std::vector<RowId> ids;
    for (const ListedRow& row : listed->rows) ids.push_back(row.row);
    return ids;
  };
  EXPECT_EQ(list("x", {}), (std::vector<RowId>{rows[1], rows[2], rows[3]}));
  EXPECT_EQ(list("", {"a", "b"}), (std::vector<RowId>{rows[0], rows[2]}));
  EXPECT_EQ(list("x", {"b"}), std::vector<RowId>{rows[2]});
  EXPECT_THAT(dock_->List({.partition = kPartition, .ready_for = "y"}).status(), Fails(Code::kNotFound, {"'y'"}));
  EXPECT_THAT(dock_->List({.partition = kPartition, .having = {"d"}}).status(), Fails(Code::kNotFound, {"'d'"}));
}

TEST_P(DockConformance, AKeyNamesOneRow) {
  Create({.retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.keys = {"one", "", "three"};
  const std::vector<RowId> rows = PutNew(put);
  const auto find = [&](std::vector<std::string> keys) { return dock_->FindRows(kPartition, keys); };
  EXPECT_EQ(*find({"three", "one"}), (std::vector<RowId>{rows[2], rows[0]}));
  EXPECT_THAT(find({"one", "two"}).status(), Fails(Code::kNotFound, {"key 'two'"}));
  put.keys = {"four", "one", "five"};
  EXPECT_THAT(Put(put), Fails(Code::kAlreadyExists, {"row 0 has key 'one'"}));
  EXPECT_EQ(find({"four"}).status().code(), Code::kNotFound);
  put.keys = {"four", "four", ""};
  EXPECT_THAT(Put(put), Fails(Code::kInvalidArgument, {"'four'", "twice"}));
  put.keys = {"four"};
  EXPECT_THAT(Put(put), Fails(Code::kInvalidArgument, {"1 keys for 3 rows"}));
  put.keys = {"a\nb", "", ""};
  EXPECT_EQ(Put(put).code(), Code::kInvalidArgument);
  // They come with the rows, and go with them.
  const Taken taken = Take("x", 3);
  EXPECT_EQ(taken.rows.key(0), "one");
  EXPECT_EQ(taken.rows.key(1), "");
  ASSERT_EQ(Complete(taken.lease), absl::OkStatus());
  EXPECT_EQ(find({"one"}).status().code(), Code::kNotFound);
  put.keys = {"one", "", ""};
  EXPECT_EQ(Put(put), absl::OkStatus());
}

TEST_P(DockConformance, TagsMarkRowsToListTakeAndClear) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.tags = {{{"split", "train"}}, {{"split", "test"}}, {{"split", "train"}, {"level", "hard"}}};
  const std::vector<RowId> rows = PutNew(put);
  // One for all; and what is there stays.
  ASSERT_EQ(Put({.partition = kPartition, .rows = {rows[0], rows[1]}, .tags = {{{"level", "easy"}}}}),
            absl::OkStatus());
  EXPECT_EQ(Take("x", 1).rows.tags(0), (Tags{{"split", "train"}, {"level", "easy"}}));

  const auto list = [&](const Tags& tags, RowId from = 0, int64_t limit = 10) {
    return *dock_->List({.partition = kPartition, .tags = tags, .from = from, .limit = limit});
  };
  EXPECT_EQ(list({}).rows.size(), 3u);
  ASSERT_EQ(list({{"split", "train"}}).rows.size(), 2u);
  EXPECT_EQ(list({{"split", "train"}}).rows[1].row, rows[2]);
  EXPECT_EQ(list({{"split", "train"}}).next, std::nullopt);
  const ListResult first = list({}, 0, 2);
  EXPECT_EQ(first.next, rows[2]);
  EXPECT_EQ(list({}, *first.next).rows.size(), 1u);
  EXPECT_EQ(dock_->List({.partition = kPartition, .limit = 0}).status().code(), Code::kInvalidArgument);

  EXPECT_EQ(*dock_->Clear({.partition = kPartition, .tags = {{"split", "train"}, {"level", "hard"}}}), 1);
  EXPECT_EQ(*dock_->Clear({.partition = kPartition, .tags = {{"split", "none"}}}), 0);
  EXPECT_EQ(Status().rows, 2);

  put.tags.pop_back();
  EXPECT_THAT(Put(put), Fails(Code::kInvalidArgument, {"2 sets", "tags", "3 rows"}));
  for (const Tags& wrong : {Tags{{"", "x"}}, Tags{{"a", std::string(1025, 'x')}}, Tags{{"a", "\xff"}}}) {
    put.tags = {wrong};
    EXPECT_EQ(Put(put).code(), Code::kInvalidArgument);
  }
}

TEST_P(DockConformance, OptionalColumnsComeWhereTheyAreThere) {
  Create({.growing = true});
  Register({.name = "x", .reads = {"a"}, .reads_optional = {"b", "never"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  ASSERT_EQ(Take("x", 1).rows.columns().size(), 1u);
  ASSERT_EQ(Fill({rows[2]}, {{"b", {30}}}), absl::OkStatus());
  const Rows taken = Take("x", 2).rows;
  ASSERT_EQ(taken.columns().size(), 2u);
  EXPECT_FALSE(taken.Has(0, 1));
  ASSERT_TRUE(taken.Has(1, 1));
  EXPECT_EQ(taken.Get<float>(1, "b")->front(), 30);
  EXPECT_THAT(taken.Get<float>(0, "b").status(), Fails(Code::kNotFound, {"column 'b'", "row 1"}));
  EXPECT_THAT(taken.ToColumn("b").status(), Fails(Code::kNotFound, {"column 'b'", "row 1"}));
  EXPECT_EQ(taken.ToBatch()->columns().size(), 1u);
  EXPECT_EQ(dock_->RegisterConsumer(kPartition, {.name = "y", .reads = {"a"}, .reads_optional = {"a"}}).code(),
            Code::kInvalidArgument);
}

TEST_P(DockConformance, APartialCellIsItsWritersOnly) {
  Create({.growing = true});
  Register({.name = "rollout", .reads = {"a"}, .reads_optional = {"b"}, .writes = {"b"}});
  Register({.name = "reader", .reads = {"b"}});
  Register({.name = "curious", .reads = {"a"}, .reads_optional = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  FillRequest unfinished = Cells({{"b", {10, 20}}});
  unfinished.rows = rows;
  unfinished.lease = Take("rollout", 2).lease;
  unfinished.partial = true;
  ASSERT_EQ(Put(unfinished), absl::OkStatus());
  // The rows were given back, and nobody else sees anything.
  EXPECT_EQ(StatusOf("reader").waiting, 2);
  EXPECT_FALSE(Take("curious", 1).rows.Has(0, 1));
  EXPECT_EQ(dock_->Fetch({.partition = kPartition, .rows = rows, .columns = {"b"}}).status().code(),
            Code::kDeadlineExceeded);
  const Taken again = Take("rollout", 2);
  EXPECT_EQ(again.rows.Get<float>(1, "b")->front(), 20);
  EXPECT_TRUE(again.rows.cell(1, 1).partial);
  EXPECT_EQ(again.rows.redeliveries(0), 0);
  // Finished now, one of them: without overwriting, because nothing was ready.
  ASSERT_EQ(Fill({rows[0]}, {{"b", {11}}}, again.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("reader").ready, 1);
  EXPECT_EQ(Take("reader", 1).rows.Get<float>(0, "b")->front(), 11);
  ASSERT_EQ(Clear({rows[1]}).status(), absl::OkStatus());

  unfinished.lease = kNoLease;
  unfinished.rows = {rows[0]};
  unfinished.batch = Floats({{"b", {12}}}).batch;
  EXPECT_EQ(Put(unfinished).code(), Code::kAlreadyExists);
  unfinished.overwrite = true;
  EXPECT_EQ(Put(unfinished).code(), Code::kInvalidArgument);
  unfinished.overwrite = false;
  unfinished.rows = {};
  EXPECT_EQ(Put(unfinished).code(), Code::kInvalidArgument);
}

TEST_P(DockConformance, ACellWithoutElementsIsThere) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32, {0})}, {"t", ColumnType::Bytes()}}});
  Register({.name = "x", .reads = {"a", "t"}});
  PutRequest put{.partition = kPartition};
  ASSERT_EQ(put.batch.Add("a", *Column::MakeDense(DType::kF32, {0}, 2, Buffer())), absl::OkStatus());
  const std::vector<std::string> empty(2);
  ASSERT_EQ(put.batch.Add("t", Column::FromStrings(empty)), absl::OkStatus());
  PutNew(put);
  const Rows taken = Take("x", 2).rows;
  EXPECT_TRUE(taken.Has(1, 0));
  EXPECT_TRUE(taken.Has(1, 1));
  EXPECT_EQ(taken.ToBatch()->rows(), 2);
}

TEST_P(DockConformance, WhatIsPutAsTextIsUtf8) {
  Create({.columns = {{"t", ColumnType::Text()}, {"b", ColumnType::Bytes()}}});
  const auto put = [&](const char* column, const std::vector<std::string>& rows) {
    PutRequest request{.partition = kPartition};
    const Column bytes = Column::FromStrings(rows);
    const Buffer offsets = Buffer::CopyOf(std::as_bytes(bytes.offsets()));
    const DType dtype = absl::string_view(column) == "t" ? DType::kI8 : DType::kU8;
    EXPECT_EQ(request.batch.Add(column, *Column::MakeBytes(bytes.values(), offsets, dtype)), absl::OkStatus());
    return Put(request);
  };
  EXPECT_EQ(put("t", {"", "a", "\xC3\xA9", "\xF0\x9F\x98\x80"}), absl::OkStatus());
  EXPECT_EQ(put("b", {"\xFF"}), absl::OkStatus());
  EXPECT_THAT(put("t", {"a", "ab\xFF"}), Fails(Code::kInvalidArgument, {"column 't', row 1", "byte 2"}));
  // Two halves of a character make no text of either row.
  EXPECT_THAT(put("t", {"a\xC3", "\xA9"}), Fails(Code::kInvalidArgument, {"column 't', row 0", "byte 1"}));
  EXPECT_EQ(Status().rows, 5);
}

TEST_P(DockConformance, BytesThatArePutIntoAColumnOfTextAreUtf8) {
  Create({.columns = {{"t", ColumnType::Text()}}});
  const auto put = [&](const std::vector<std::string>& rows) {
    PutRequest request{.partition = kPartition};
    EXPECT_EQ(request.batch.Add("t", Column::FromStrings(rows)), absl::OkStatus());
    return Put(request);
  };
  EXPECT_THAT(put({"a", "ab\xFF"}), Fails(Code::kInvalidArgument, {"column 't', row 1", "byte 2"}));
  EXPECT_EQ(put({"a", "\xC3\xA9"}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 2);
}

TEST_P(DockConformance, APartitionMayRefuseNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32)},
                      {"r", ColumnType::Ragged(DType::kF64)},
                      {"h", ColumnType::Dense(DType::kBF16)}},
          .refuse_nan = true});
  EXPECT_EQ(Put(Floats({{"a", {1, infinity}}})), absl::OkStatus());
  EXPECT_THAT(Put(Floats({{"a", {1, 2, nan}}})),
              Fails(Code::kInvalidArgument, {"column 'a', row 2", "element 0 is NaN"}));
  PutRequest ragged{.partition = kPartition};
  ASSERT_EQ(ragged.batch.Add("r", Column::FromRows<double>({{1}, {}, {2, nan}})), absl::OkStatus());
  EXPECT_THAT(Put(ragged), Fails(Code::kInvalidArgument, {"column 'r', row 2", "element 1 is NaN"}));
  const auto half = [&](uint16_t bits) {
    PutRequest put{.partition = kPartition};
    const Buffer buffer = Buffer::CopyOf(std::as_bytes(std::span(&bits, 1)));
    EXPECT_EQ(put.batch.Add("h", *Column::MakeDense(DType::kBF16, {}, 1, buffer)), absl::OkStatus());
    return Put(put).code();
  };
  EXPECT_EQ(half(0x7F80), Code::kOk);  // infinity
  EXPECT_EQ(half(0xFF81), Code::kInvalidArgument);
  EXPECT_EQ(Status().rows, 3);
}

}  // namespace tdock::dock
