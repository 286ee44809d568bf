#include "model/tensor_torch/convert.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock {
namespace {

TEST(Convert, TheTensorOfADenseColumnSharesItsMemory) {
  const std::vector<float> values = {1, 2, 3};
  const Column column = *Column::FromValues(values);
  const auto tensor = ValuesOf(column);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_TRUE(at::equal(*tensor, at::tensor(values)));
  EXPECT_EQ(static_cast<const void*>(column.values().data()), tensor->const_data_ptr());
}

TEST(Convert, ARaggedColumnKeepsTheTensorAlive) {
  absl::StatusOr<Column> column = absl::UnknownError("");
  {
    const at::Tensor items = at::arange(5, at::kInt);
    const int64_t lengths[] = {2, 0, 3};
    column = RaggedColumn(items, lengths);
  }
  ASSERT_TRUE(column.ok()) << column.status();
  EXPECT_EQ(column->rows(), 3);
  EXPECT_EQ((*column->Row<int32_t>(2))[0], 2);
  EXPECT_EQ(column->Row<int32_t>(1)->size(), 0u);
  EXPECT_TRUE(at::equal(*ValuesOf(*column), at::arange(5, at::kInt)));
}

TEST(Convert, ASliceOfARaggedColumnGivesItsOwnItems) {
  const int64_t lengths[] = {2, 1, 3};
  const auto column = RaggedColumn(at::arange(6, at::kLong), lengths);
  const auto slice = column->Slice(1, 2);
  ASSERT_TRUE(slice.ok());
  EXPECT_TRUE(at::equal(*ValuesOf(*slice), at::arange(2, 6, at::kLong)));
}

TEST(Convert, EveryDTypeGoesThereAndBack) {
  for (int i = 0; i <= static_cast<int>(DType::kF8E5M2); ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto scalar = ToScalarType(dtype);
    ASSERT_TRUE(scalar.ok()) << Name(dtype);
    EXPECT_EQ(*ToDType(*scalar), dtype);
    EXPECT_EQ(c10::elementSize(*scalar), SizeOf(dtype));
  }
}

TEST(Convert, WhatDoesNotFitIsNamed) {
  const int64_t lengths[] = {2, 1};
  EXPECT_THAT(RaggedColumn(at::zeros({4}), lengths).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"3 items", "tensor has 4"}));
  EXPECT_THAT(RaggedColumn(at::zeros({3}, at::kComplexFloat), lengths).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"ComplexFloat"}));
  const std::string text[] = {"a"};
  EXPECT_FALSE(ValuesOf(Column::FromStrings(text)).ok());
}

}  // namespace
}  // namespace tdock
