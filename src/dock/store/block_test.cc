#include "dock/store/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dock/store/warm_memory.h"

namespace tdock::dock {
namespace {

class BlockTest : public testing::Test {
 protected:
  const BulkCopy copy_{0};
  const BlockSource source_{.memory = std::make_shared<WarmMemory>()};
};

std::string Text(const Block& block, uint32_t row) {
  const auto bytes = block.Row(row);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(BlockTest, HoldsRowsOfSeveralPutsOneBehindTheOther) {
  const std::shared_ptr<Block> made =
      source_.Make({.kind = ColumnKind::kBytes, .item_bytes = 1, .row_capacity = 8, .value_capacity_bytes = 64});
  Block& block = *made;
  block.Write(0, 0, Column::FromStrings(std::vector<std::string>{"ab", ""}), copy_);
  // Two rows took three places.
  EXPECT_EQ(Block::RowPlaces(ColumnKind::kBytes, 2), 3);
  block.Write(3, 2, Column::FromStrings(std::vector<std::string>{"c"}), copy_);
  EXPECT_EQ(Text(block, 0), "ab");
  EXPECT_EQ(Text(block, 1), "");
  EXPECT_EQ(Text(block, 3), "c");
}

TEST_F(BlockTest, CopiesSlicesWhoseOffsetsDoNotStartAtZero) {
  const std::shared_ptr<Block> made =
      source_.Make({.kind = ColumnKind::kRagged, .item_bytes = 8, .row_capacity = 8, .value_capacity_bytes = 64});
  Block& block = *made;
  block.Write(0, 8, *Column::FromRows<int64_t>({{1, 2}, {3}, {4, 5}}).Slice(1, 2), copy_);
  const auto bytes = block.Row(1);
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(reinterpret_cast<const int64_t*>(bytes.data())[1], 5);
  EXPECT_EQ(block.Row(0).size(), 8u);
}

TEST_F(BlockTest, TakesOverChosenRowsOfAnotherBlock) {
  const BlockShape shape{.kind = ColumnKind::kBytes, .item_bytes = 1, .row_capacity = 8, .value_capacity_bytes = 64};
  const std::shared_ptr<Block> from = source_.Make(shape);
  from->Write(0, 0, Column::FromStrings(std::vector<std::string>{"ab", "", "cde", "f"}), copy_);
  from->Write(5, 6, Column::FromStrings(std::vector<std::string>{"", "gh"}), copy_);
  const std::shared_ptr<Block> to = source_.Make(shape);
  to->WriteRows(*from, std::vector<uint32_t>{0, 1, 3, 5, 6});
  std::vector<std::string> texts;
  for (uint32_t row = 0; row < 5; ++row) texts.push_back(Text(*to, row));
  EXPECT_THAT(texts, testing::ElementsAre("ab", "", "f", "", "gh"));
}

TEST_F(BlockTest, CountsWhatItOccupiesWhileItLives) {
  std::shared_ptr<Block> block =
      source_.Make({.kind = ColumnKind::kDense, .item_bytes = 4, .row_capacity = 25, .value_capacity_bytes = 100});
  EXPECT_EQ(source_.held->load(), 100);
  EXPECT_EQ(Block::BytesFor(ColumnKind::kDense, 25, 100), 100);
  EXPECT_EQ(source_.Make({.kind = ColumnKind::kBytes, .row_capacity = 3, .value_capacity_bytes = 9})->bytes(),
            Block::BytesFor(ColumnKind::kBytes, 3, 9));
  block.reset();
  EXPECT_EQ(source_.held->load(), 0);
}

}  // namespace
}  // namespace tdock::dock
