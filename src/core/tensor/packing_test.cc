#include "tdock/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "core/tensor/testing/random_batch.h"
#include "tdock/meta_batch.h"

namespace tdock {
namespace {

using testing::ElementsAre;

Column Lengths32(const std::vector<int32_t>& lengths) { return *Column::FromValues(lengths); }

TEST(PackRows, PutsRowsOneAfterAnotherWithoutACopy) {
  const Column prompts = Column::FromRows<int64_t>({{1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3}, {4, 4, 4, 4}});
  const PackedRows packed = *PackRows(prompts);
  EXPECT_EQ(packed.values.rows(), 14);
  EXPECT_EQ(packed.values.values().data(), prompts.values().data());
  EXPECT_THAT(*packed.lengths.Values<int32_t>(), ElementsAre(3, 4, 3, 4));

  const Column padded = *UnpackAndPad(packed, {.pad_id = 9, .multiple = 2});
  EXPECT_EQ(ToString(padded.type()), "int64[4]");
  EXPECT_THAT(*padded.Row<int64_t>(0), ElementsAre(1, 1, 1, 9));
  EXPECT_EQ(ToString(UnpackAndPad(packed, {.multiple = 8})->type()), "int64[8]");
}

TEST(PackRows, IsUndoneByUnpackRows) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const Column column = RandomColumn(rng, static_cast<int64_t>(rng.Below(5)));
    const absl::StatusOr<PackedRows> packed = PackRows(column);
    ASSERT_EQ(packed.ok(), column.type().kind != ColumnKind::kBytes) << packed.status();
    if (column.type().kind == ColumnKind::kRagged) {
      EXPECT_EQ(Only(*UnpackRows(*packed)), Only(column));
    }
    if (column.type().kind == ColumnKind::kDense && !column.type().row_shape.empty()) {
      EXPECT_EQ(Only(*UnpackAndPad(*packed)).rows(), column.rows());
    }
  }
}

TEST(UnpackRows, RefusesLengthsThatAreNotThoseOfTheItems) {
  const Column values = *Column::FromValues<float>({1, 2, 3});
  EXPECT_THAT(UnpackRows({values, Lengths32({1, 1})}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"lengths", "up to 2", "3 items"}));
  EXPECT_FALSE(UnpackRows({values, Lengths32({1, 3})}).ok());
  EXPECT_THAT(UnpackRows({values, Lengths32({4, -1})}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"row 1", "length -1"}));
  EXPECT_FALSE(UnpackRows({values, *Column::FromValues<int64_t>({INT64_MAX, INT64_MAX})}).ok());
  EXPECT_THAT(UnpackRows({Column::FromRows<float>({{1}}), Lengths32({1})}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"dense", "ragged float32[*]"}));
}

TEST(PackRows, RefusesLengthsBeyond32Bits) {
  const int64_t length = int64_t{1} << 31;  // not read, so not there
  const Column row =
      *Column::MakeDense(DType::kU8, {length}, 1, Buffer::Wrap(nullptr, static_cast<size_t>(length), nullptr));
  EXPECT_THAT(PackRows(row).status(), Fails(absl::StatusCode::kInvalidArgument, {"row 0", "2147483648", "2147483647"}));
}

TEST(PackRows, TakesNoTimeForRowsThatAreOnlyClaimed) {
  const Column claimed = *Column::MakeDense(DType::kI32, {0}, INT64_MAX, Buffer());
  EXPECT_THAT(PackRows(claimed).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"rows", "9223372036854775807", "at most 268435456"}));
}

}  // namespace
}  // namespace tdock
