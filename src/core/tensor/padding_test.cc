#include "tdock/padding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "core/tensor/testing/random_batch.h"
#include "tdock/meta_batch.h"

namespace tdock {
namespace {

using testing::ElementsAre;
template <class T>
using Rows = std::vector<std::vector<T>>;

template <class T>
Rows<T> RowsOf(const absl::StatusOr<Column>& column) {
  Rows<T> rows;
  EXPECT_TRUE(column.ok()) << column.status();
  for (int64_t row = 0; column.ok() && row < column->rows(); ++row) {
    const auto values = column->Row<T>(row);
    EXPECT_TRUE(values.ok()) << values.status();
    if (values.ok()) rows.emplace_back(values->begin(), values->end());
  }
  return rows;
}

Column Ints(const Rows<int64_t>& rows) { return Column::FromRows(rows); }
Column Numbers(const std::vector<int64_t>& values, const Shape& shape = {}) {
  return *Column::FromValues(values, shape);
}

TEST(PadRows, FillsUpToTheLongestRow) {
  const Column rows = Ints({{1}, {}, {2, 3}});
  EXPECT_EQ(RowsOf<int64_t>(PadRows(rows, {.pad_id = 9})), (Rows<int64_t>{{1, 9}, {9, 9}, {2, 3}}));
  EXPECT_EQ(RowsOf<int64_t>(PadRows(rows, {.pad_id = 9, .multiple = 3, .side = PadSide::kLeft})),
            (Rows<int64_t>{{9, 9, 1}, {9, 9, 9}, {9, 2, 3}}));
  EXPECT_EQ(ToString(PadRows(rows)->type()), "int64[2]");
  EXPECT_EQ(ToString(PadRows(Ints({}), {.multiple = 4})->type()), "int64[0]");
  EXPECT_EQ(RowsOf<float>(PadRows(Column::FromRows<float>({{1}, {2, 3}}), {.pad_id = 9})),
            (Rows<float>{{1, 0}, {2, 3}}));
  EXPECT_EQ(RowsOf<int16_t>(PadRows(Column::FromRows<int16_t>({{1}, {2, 3}}), {.pad_id = -1})),
            (Rows<int16_t>{{1, -1}, {2, 3}}));
}

TEST(PadRows, KeepsTheDimensionsAfterTheFirst) {
  const std::vector<int64_t> values = {1, 2, 3, 4, 5, 6}, offsets = {0, 1, 3};
  const Column rows = *Column::MakeRagged(DType::kI64, {2}, Buffer::CopyOf(std::as_bytes(std::span(values))),
                                          Buffer::CopyOf(std::as_bytes(std::span(offsets))));
  const Column padded = *PadRows(rows, {.pad_id = 9});
  EXPECT_EQ(ToString(padded.type()), "int64[2,2]");
  EXPECT_EQ(RowsOf<int64_t>(padded), (Rows<int64_t>{{1, 2, 9, 9}, {3, 4, 5, 6}}));
}

TEST(PadRows, SaysWhatDoesNotFit) {
  const Column bytes =
      *Column::MakeRagged(DType::kU8, {}, Buffer(), Buffer::CopyOf(std::as_bytes(std::span("\0\0\0\0\0\0\0", 8))));
  EXPECT_THAT(PadRows(bytes, {.pad_id = 256}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"pad id 256", "uint8"}));
  EXPECT_THAT(PadRows(Ints({}), {.multiple = 0}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"multiple is 0", "positive"}));
  EXPECT_THAT(PadRows(Column::FromStrings(std::vector<std::string>{"a"})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"holds bytes"}));
}

TEST(PadRows, RefusesWidthsThatNoMemoryHolds) {
  for (int64_t multiple : {(int64_t{1} << 33) + 1, int64_t{1} << 45, INT64_MAX}) {
    const absl::Status status = PadRows(Ints({{1}}), {.multiple = multiple}).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument,
                              {"1 rows", absl::StrCat("multiple of ", multiple), "68719476736"}));
  }
  EXPECT_FALSE(PadRows(Ints({{1}, {1}}), {.multiple = (int64_t{1} << 32) + 1}).ok());
  EXPECT_EQ(PadRows(Ints({{}}), {.multiple = INT64_MAX})->rows(), 1);
}

TEST(PadRows, RefusesRowsThatAreOnlyClaimed) {
  const Column claimed = *Column::MakeDense(DType::kI64, {0}, INT64_MAX, Buffer());
  const auto refused = Fails(absl::StatusCode::kInvalidArgument, {"rows", "9223372036854775807", "at most 268435456"});
  EXPECT_THAT(PadRows(claimed).status(), refused);
  EXPECT_THAT(Lengths(claimed).status(), refused);
  EXPECT_THAT(CutAtPad(claimed, 1, 1).status(), refused);
  Batch batch;
  ASSERT_TRUE(batch.Add("x", claimed).ok());
  ASSERT_TRUE(batch.Add("y", claimed).ok());
  EXPECT_THAT(UnpadColumns({batch, Numbers({1, 2})}).status(), refused);
}

TEST(UnpadRows, CutsRowsToTheirFirstOrLastItems) {
  const Column rows = Numbers({1, 2, 3, 4, 5, 6, 7, 8}, {4});
  EXPECT_EQ(RowsOf<int64_t>(UnpadRows(rows, Numbers({2, 3}, {1}))), (Rows<int64_t>{{1, 2}, {5, 6, 7}}));
  EXPECT_EQ(RowsOf<int64_t>(UnpadRows(rows, Numbers({2, 3}), PadSide::kLeft)), (Rows<int64_t>{{3, 4}, {6, 7, 8}}));
  EXPECT_THAT(UnpadRows(rows, Numbers({2, 5})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"row 1", "4 items", "be 5"}));
  EXPECT_THAT(UnpadRows(rows, Numbers({2, -1})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"row 1", "length -1"}));
  EXPECT_THAT(UnpadRows(rows, Numbers({2})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"1 lengths", "2 rows"}));
  EXPECT_THAT(UnpadRows(rows, *Column::FromValues<float>({1, 2})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"int32", "int64", "[1]", "float32[]"}));
}

TEST(UnpadRows, KeepsNothingOfARowOfLengthZeroOnEitherSide) {
  const Column rows = Numbers({1, 2, 3, 4}, {2});
  for (PadSide side : {PadSide::kLeft, PadSide::kRight}) {
    EXPECT_EQ(RowsOf<int64_t>(UnpadRows(rows, Numbers({0, 2}), side)), (Rows<int64_t>{{}, {3, 4}}));
  }
}

TEST(PadRows, IsUndoneByUnpadRows) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const Column column = RandomColumn(rng, static_cast<int64_t>(rng.Below(5)));
    if (column.type().kind != ColumnKind::kRagged) continue;
    const PadSide side = rng.Below(2) == 0 ? PadSide::kLeft : PadSide::kRight;
    const int64_t multiple = 1 + static_cast<int64_t>(rng.Below(5));
    const Column padded = *PadRows(column, {.pad_id = 7, .multiple = multiple, .side = side});
    EXPECT_EQ(padded.type().row_shape[0] % multiple, 0);
    EXPECT_EQ(Only(*UnpadRows(padded, *Lengths(column), side)), Only(column));
  }
}

TEST(PadColumns, RemembersTheLengthsOfAllColumns) {
  Batch batch;
  ASSERT_TRUE(batch.Add("prompt", Ints({{1, 1, 1}, {2, 2, 2, 2}})).ok());
  ASSERT_TRUE(batch.Add("mask", Ints({{1}, {2, 2}})).ok());
  const PaddedColumns padded = *PadColumns(batch);
  EXPECT_EQ(RowsOf<int64_t>(padded.columns.Get("prompt")), (Rows<int64_t>{{1, 1, 1, 0}, {2, 2, 2, 2}}));
  EXPECT_EQ(RowsOf<int64_t>(padded.columns.Get("mask")), (Rows<int64_t>{{1, 0}, {2, 2}}));
  EXPECT_THAT(*padded.original_length->Values<int64_t>(), ElementsAre(3, 4, 1, 2));
  EXPECT_EQ(MetaBatch(*UnpadColumns(padded)), MetaBatch(batch));

  EXPECT_EQ(MetaBatch(*UnpadColumns({padded.columns, std::nullopt})), MetaBatch(padded.columns));
  EXPECT_TRUE(UnpadColumns(*PadColumns({}))->empty());
  EXPECT_THAT(
      UnpadColumns({padded.columns, Numbers({1, 2})}).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"original_length", "2 lengths", "2 columns of 2 rows", "have 4"}));
  ASSERT_TRUE(batch.Add("text", Column::FromStrings(std::vector<std::string>{"a", "b"})).ok());
  EXPECT_THAT(PadColumns(batch).status(), Fails(absl::StatusCode::kInvalidArgument, {"'text'", "bytes"}));
}

TEST(PadExperience, PadsEachColumnByWhatItHolds) {
  Batch batch;
  ASSERT_TRUE(batch.Add("responses", Ints({{1}, {2, 2}, {3, 3, 3}})).ok());
  ASSERT_TRUE(batch.Add("attention_mask", Ints({{1}, {1, 1}, {1, 1, 1}})).ok());
  ASSERT_TRUE(batch.Add("log_probs", Column::FromRows<float>({{-1}, {-2, -2}, {-3, -3, -3}})).ok());
  ASSERT_TRUE(batch.Add("response_length", Ints({{1}, {2}, {3}})).ok());
  ASSERT_TRUE(batch.Add("prompt_length", Numbers({4, 5, 6})).ok());
  ASSERT_TRUE(batch.Add("reward", Column::FromValues<float>({1, 0, 1})).ok());
  ASSERT_TRUE(batch.Add("text", Column::FromStrings(std::vector<std::string>{"a", "b", "c"})).ok());
  const Batch padded = *PadExperience(batch, {.pad_id = 77, .multiple = 2});
  EXPECT_EQ(RowsOf<int64_t>(padded.Get("responses")), (Rows<int64_t>{{1, 77, 77, 77}, {2, 2, 77, 77}, {3, 3, 3, 77}}));
  EXPECT_EQ(RowsOf<int64_t>(padded.Get("attention_mask")), (Rows<int64_t>{{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 1, 0}}));
  EXPECT_EQ(RowsOf<float>(padded.Get("log_probs")), (Rows<float>{{-1, 0, 0, 0}, {-2, -2, 0, 0}, {-3, -3, -3, 0}}));
  EXPECT_EQ(ToString(padded.Get("response_length")->type()), "int64[1]");
  EXPECT_EQ(ToString(padded.Get("prompt_length")->type()), "int64[1]");
  EXPECT_EQ(RowsOf<int64_t>(padded.Get("prompt_length")), (Rows<int64_t>{{4}, {5}, {6}}));
  EXPECT_EQ(ToString(padded.Get("reward")->type()), "float32[]");
  EXPECT_EQ(*padded.Find("text")->Text(1), "b");
}

TEST(PadExperience, TakesZeroForAnId) {
  Batch batch;
  ASSERT_TRUE(batch.Add("x", Ints({{1}, {2, 2}, {3, 3, 3}})).ok());
  EXPECT_EQ(RowsOf<int64_t>(PadExperience(batch, {.pad_id = 0, .multiple = 2})->Get("x")),
            (Rows<int64_t>{{1, 0, 0, 0}, {2, 2, 0, 0}, {3, 3, 3, 0}}));
}

TEST(PadExperience, NamesTheRowThatHasNoSingleLength) {
  Batch batch;
  ASSERT_TRUE(batch.Add("age", Ints({{1}, {2, 2}})).ok());
  EXPECT_THAT(PadExperience(batch, {}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'age'", "row 1", "2 values"}));
}

TEST(CutAtPad, EndsRowsAtTheirFirstPad) {
  const Column responses = Numbers({1, 2, 3, 4, 0, 0, 4, 5, 6, 1, 1, 0}, {6});
  EXPECT_EQ(RowsOf<int64_t>(CutAtPad(responses, /*eos_id=*/77, /*pad_id=*/0)),
            (Rows<int64_t>{{1, 2, 3, 4}, {4, 5, 6, 1, 1}}));
  EXPECT_EQ(RowsOf<int64_t>(CutAtPad(responses, /*eos_id=*/0, /*pad_id=*/0)),
            (Rows<int64_t>{{1, 2, 3, 4, 0}, {4, 5, 6, 1, 1, 0}}));
  EXPECT_EQ(RowsOf<int64_t>(CutAtPad(Ints({{1, 2}, {}, {0}}), 77, 0)), (Rows<int64_t>{{1, 2}, {}, {}}));
  EXPECT_EQ(RowsOf<int32_t>(CutAtPad(Column::FromRows<int32_t>({{5, -1, 5}}), 77, -1)), (Rows<int32_t>{{5}}));
  EXPECT_THAT(CutAtPad(*Column::FromValues<float>({1, 2}), 77, 0).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"float32[]", "integers"}));
}

TEST(RepeatPrompts, PutsTheCopiesOfAPromptNextToEachOther) {
  const Batch repeated = *RepeatPrompts(Ints({{1, 2, 3}, {4, 5}}), 2);
  EXPECT_EQ(RowsOf<int64_t>(repeated.Get("prompts")), (Rows<int64_t>{{1, 2, 3}, {1, 2, 3}, {4, 5}, {4, 5}}));
  EXPECT_EQ(RowsOf<int64_t>(repeated.Get("prompt_length")), (Rows<int64_t>{{3}, {3}, {2}, {2}}));
  EXPECT_EQ(RepeatPrompts(Ints({{1}}), 0)->rows(), 0);
  EXPECT_EQ(RepeatPrompts(Ints({}), INT64_MAX)->rows(), 0);
}

TEST(RepeatPrompts, RefusesCountsThatNoMemoryHolds) {
  for (int64_t n : {int64_t{-1}, int64_t{1 << 28} + 1, int64_t{1} << 40, INT64_MAX}) {
    const absl::Status status = RepeatPrompts(Ints({{1}}), n).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument,
                              {"1 prompts", absl::StrCat(n, " times"), "from 0 to 268435456"}));
  }
  EXPECT_THAT(RepeatPrompts(Ints({std::vector<int64_t>(1024)}), (1 << 23) + 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"1 rows of 8192", "8388609 rows", "68719476736"}));
}

}  // namespace
}  // namespace tdock
