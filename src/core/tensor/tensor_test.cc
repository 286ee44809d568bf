#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/testing/fails.h"
#include "tdock/batch.h"

namespace tdock {
namespace {

using testing::ElementsAre;

template <class T>
std::vector<T> Copy(absl::StatusOr<std::span<const T>> values) {
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? std::vector<T>(values->begin(), values->end()) : std::vector<T>();
}

Buffer Offsets(std::vector<int64_t> offsets) { return Buffer::CopyOf(std::as_bytes(std::span(offsets))); }

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF8E5M2); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_GT(SizeOf(dtype), 0u);
    EXPECT_EQ(*ParseDType(Name(dtype)), dtype);
  }
  EXPECT_THAT(ParseDType("float").status(), Fails(absl::StatusCode::kInvalidArgument, {"'float'", "bool, uint8"}));
}

TEST(Shape, RefusesNegativeSizesOverflowAndTooManyDimensions) {
  EXPECT_EQ(*NumElements({}), 1);
  EXPECT_EQ(*NumElements({2, 3}), 6);
  EXPECT_EQ(*NumElements({1, 0}), 0);
  EXPECT_FALSE(NumElements({2, -1}).ok());
  EXPECT_FALSE(NumElements({int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(NumElements({1, 1, 1, 1, 1, 1, 1, 1, 1}).ok());
  EXPECT_FALSE(ItemBytes(ColumnType::Dense(DType::kF64, {int64_t{1} << 61})).ok());
}

TEST(Buffer, IsAlignedAndShared) {
  for (size_t size : {1, 63, 64, 65, 100'000}) {
    Buffer buffer = Buffer::Allocate(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % Buffer::kAlignment, 0u);
    buffer.mutable_data()[size - 1] = std::byte{7};
    EXPECT_EQ(buffer.Slice(size - 1, 1).bytes()[0], std::byte{7});
  }
}

TEST(Buffer, WrapKeepsForeignMemoryAliveUntilTheLastCopyIsGone) {
  bool freed = false;
  auto* memory = new int64_t[2]{1, 2};
  Buffer copy;
  {
    Buffer buffer = Buffer::Wrap(memory, 16, std::shared_ptr<const void>(memory, [&freed](const void* p) {
                                   delete[] static_cast<const int64_t*>(p);
                                   freed = true;
                                 }));
    EXPECT_EQ(buffer.mutable_data(), nullptr);
    copy = buffer;
  }
  EXPECT_FALSE(freed);
  copy = Buffer();
  EXPECT_TRUE(freed);
}

TEST(Column, DenseHoldsRowsOfOneShape) {
  const Column column = *Column::FromValues<float>({1, 2, 3, 4, 5, 6}, {3});
  EXPECT_EQ(ToString(column.type()), "float32[3]");
  EXPECT_EQ(column.rows(), 2);
  EXPECT_EQ(column.Length(0), 3);
  EXPECT_THAT(Copy(column.Row<float>(1)), ElementsAre(4, 5, 6));
  EXPECT_THAT(Copy(column.Values<float>()), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Copy(Column::FromValues<bool>({true, false})->Values<bool>()), ElementsAre(true, false));
  EXPECT_EQ(Column::FromValues(std::span<const float>())->rows(), 0);
}

TEST(Column, RaggedHoldsRowsOfVaryingLength) {
  const Column column = Column::FromRows<int64_t>({{1, 2, 3}, {}, {4}});
  EXPECT_EQ(ToString(column.type()), "ragged int64[*]");
  EXPECT_EQ(column.rows(), 3);
  EXPECT_EQ(column.Length(0), 3);
  EXPECT_EQ(column.Length(1), 0);
  EXPECT_THAT(Copy(column.Row<int64_t>(0)), ElementsAre(1, 2, 3));
  EXPECT_THAT(Copy(column.Row<int64_t>(1)), ElementsAre());
  EXPECT_THAT(Copy(column.Row<int64_t>(2)), ElementsAre(4));
  EXPECT_EQ(column.payload_bytes(), 32);
}

TEST(Column, RaggedRowsMayHaveInnerDimensions) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const Column column =
      *Column::MakeRagged(DType::kF32, {2}, Buffer::CopyOf(std::as_bytes(std::span(values))), Offsets({0, 2, 3}));
  EXPECT_EQ(ToString(column.type()), "ragged float32[*,2]");
  EXPECT_EQ(column.Length(0), 2);
  EXPECT_THAT(Copy(column.Row<float>(1)), ElementsAre(5, 6));
}

TEST(Column, BytesHoldStrings) {
  const Column column = Column::FromStrings(std::vector<std::string>{"ab", "", "c"});
  EXPECT_EQ(*column.Text(0), "ab");
  EXPECT_EQ(*column.Text(1), "");
  EXPECT_EQ(*column.Text(2), "c");
  EXPECT_EQ(column.Text(3).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Column, TextIsBytesOfAnotherElementType) {
  const auto make = [](DType dtype) {
    return Column::MakeBytes(Buffer::CopyOf(std::as_bytes(std::span("seven", 5))), Offsets({0, 5}), dtype);
  };
  EXPECT_EQ(make(DType::kI8)->type(), ColumnType::Text());
  EXPECT_EQ(make(DType::kI8)->Text(0).value(), "seven");
  EXPECT_EQ(ToString(ColumnType::Text()), "text");
  EXPECT_NE(ColumnType::Text(), ColumnType::Bytes());
  EXPECT_EQ(make(DType::kI16).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Column, TypedAccessRefusesAnotherTypeAndRowsThatAreNotThere) {
  const Column column = *Column::FromValues<int64_t>({1, 2});
  EXPECT_THAT(column.Values<float>().status(), Fails(absl::StatusCode::kInvalidArgument, {"int64[]", "float32"}));
  EXPECT_THAT(column.Text(0).status(), Fails(absl::StatusCode::kInvalidArgument, {"int64[]", "bytes"}));
  EXPECT_THAT(column.Row<int64_t>(2).status(), Fails(absl::StatusCode::kOutOfRange, {"row 2 of 2"}));
  EXPECT_FALSE(column.Row<int64_t>(-1).ok());
}

TEST(Column, ConstructorsRefuseBuffersThatDoNotFit) {
  EXPECT_FALSE(Column::FromValues<float>({1, 2, 3}, {2}).ok());
  EXPECT_FALSE(Column::FromValues<float>({1, 2, 3}, {0}).ok());
  EXPECT_FALSE(Column::MakeDense(DType::kF32, {2}, 2, Buffer::Allocate(12)).ok());
  EXPECT_FALSE(Column::MakeDense(DType::kF32, {2}, -1, Buffer::Allocate(8)).ok());
  EXPECT_FALSE(Column::MakeDense(DType::kF32, {2}, int64_t{1} << 61, Buffer()).ok());
  EXPECT_FALSE(Column::MakeDense(DType::kF32, {}, 1, Buffer::Allocate(8).Slice(1, 4)).ok());
  EXPECT_FALSE(Column::MakeBytes(Buffer::Allocate(3), Buffer()).ok());
  EXPECT_FALSE(Column::MakeBytes(Buffer::Allocate(3), Offsets({0, 2, 1})).ok());
  EXPECT_FALSE(Column::MakeBytes(Buffer::Allocate(3), Offsets({-1, 2})).ok());
  EXPECT_FALSE(Column::MakeBytes(Buffer::Allocate(3), Offsets({0, 4})).ok());
  EXPECT_FALSE(Column::MakeRagged(DType::kF32, {0}, Buffer(), Offsets({0, 4})).ok());
  EXPECT_TRUE(Column::MakeBytes(Buffer::Allocate(3), Offsets({1, 3})).ok());
}

TEST(Column, SlicesSharesSelectsAndConcatenates) {
  const Column columns[] = {Column::FromRows<int32_t>({{1, 2}, {}, {3}}), Column::FromRows<int32_t>({{4}, {5, 6}})};
  const Column tail = *columns[0].Slice(1, 2);
  EXPECT_EQ(tail.values().data(), columns[0].values().data());
  EXPECT_THAT(Copy(tail.Values<int32_t>()), ElementsAre(3));
  EXPECT_THAT(Copy(tail.Row<int32_t>(1)), ElementsAre(3));

  const Column joined = *Column::Concat(std::vector<Column>{tail, columns[1]});
  EXPECT_EQ(joined.rows(), 4);
  EXPECT_THAT(Copy(joined.Values<int32_t>()), ElementsAre(3, 4, 5, 6));
  const Column chosen = *joined.Select(std::vector<int64_t>{3, 1, 3});
  EXPECT_THAT(Copy(chosen.Values<int32_t>()), ElementsAre(5, 6, 3, 5, 6));
  EXPECT_THAT(chosen.offsets(), ElementsAre(0, 2, 3, 5));

  EXPECT_FALSE(joined.Slice(3, 2).ok());
  EXPECT_FALSE(joined.Slice(-1, 1).ok());
  EXPECT_FALSE(joined.Select(std::vector<int64_t>{4}).ok());
  EXPECT_FALSE(Column::Concat({}).ok());
  EXPECT_FALSE(Column::Concat(std::vector<Column>{joined, *Column::FromValues<int32_t>({1})}).ok());
  EXPECT_EQ(Column::Empty(ColumnType::Ragged(DType::kF32))->rows(), 0);
  EXPECT_EQ(Column::Empty(ColumnType::Dense(DType::kF32, {4}))->rows(), 0);
}

TEST(Batch, NamesColumnsOfTheSameRows) {
  Batch batch;
  ASSERT_TRUE(batch.Add("prompt", Column::FromRows<int64_t>({{1}, {2, 3}})).ok());
  ASSERT_TRUE(batch.Add("reward", Column::FromValues<float>({0.5, 1})).ok());
  EXPECT_EQ(batch.rows(), 2);
  EXPECT_THAT(Copy(batch.Row<int64_t>("prompt", 1)), ElementsAre(2, 3));
  EXPECT_THAT(Copy(batch.Values<float>("reward")), ElementsAre(0.5, 1));
  EXPECT_EQ(batch.Find("other"), nullptr);

  EXPECT_EQ(batch.Add("reward", Column::FromValues<float>({0, 1})).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(batch.Add("age", Column::FromValues<float>({0})),
              Fails(absl::StatusCode::kInvalidArgument, {"'age'", "1 rows", "'prompt'", "has 2"}));
  EXPECT_THAT(batch.Add("age", Column::FromValues<float>({0}, {2})),
              Fails(absl::StatusCode::kInvalidArgument, {"'age'", "1 values"}));
  EXPECT_THAT(batch.Get("other").status(), Fails(absl::StatusCode::kNotFound, {"'other'", "prompt, reward"}));
  EXPECT_THAT(batch.Values<float>("prompt").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'prompt'", "ragged int64[*]", "float32"}));
}

TEST(Batch, SelectsColumnsAndRowsAndConcatenates) {
  Batch batch;
  ASSERT_TRUE(batch.Add("a", Column::FromValues<int64_t>({1, 2, 3})).ok());
  ASSERT_TRUE(batch.Add("b", Column::FromStrings(std::vector<std::string>{"x", "y", "z"})).ok());
  const Batch only_b = *batch.Select(std::vector<std::string>{"b"});
  EXPECT_EQ(only_b.columns().size(), 1u);
  EXPECT_FALSE(batch.Select(std::vector<std::string>{"c"}).ok());
  const Batch reversed = *batch.SelectRows(std::vector<int64_t>{2, 1, 0});
  EXPECT_THAT(Copy(reversed.Values<int64_t>("a")), ElementsAre(3, 2, 1));
  const Batch joined = *Batch::Concat(std::vector<Batch>{*batch.Slice(1, 1), reversed});
  EXPECT_THAT(Copy(joined.Values<int64_t>("a")), ElementsAre(2, 3, 2, 1));
  EXPECT_EQ(*joined.Find("b")->Text(0), "y");
  EXPECT_EQ(Batch::Concat(std::vector<Batch>{batch, only_b}).status().code(), absl::StatusCode::kInvalidArgument);
  Batch renamed;
  for (const char* name : {"a", "c"}) ASSERT_TRUE(renamed.Add(name, *batch.Get("b")).ok());
  const absl::Status names = Batch::Concat(std::vector<Batch>{batch, renamed}).status();
  EXPECT_EQ(names.code(), absl::StatusCode::kInvalidArgument) << names;
  EXPECT_FALSE(Batch::Concat({}).ok());
}

}  // namespace
}  // namespace tdock
