#include "dock/store/block_store.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "dock/store/warm_memory.h"

namespace tdock::dock {
namespace {

class BlockStoreTest : public testing::Test {
 protected:
  static Batch Floats(size_t rows, float value) {
    Batch batch;
    EXPECT_TRUE(batch.Add("a", Column::FromValues<float>(std::vector<float>(rows, value))).ok());
    return batch;
  }

  // A whole put of one column.
  CellRef Put(size_t rows, float value, int64_t weights_version = 1, uint32_t writer = 0) {
    const Batch batch = Floats(rows, value);
    auto placements = store_.Reserve(batch, columns_, weights_version, writer);
    BlockStore::Write(batch, source_, placements);
    return store_.Publish(batch, columns_, placements)[0];
  }

  float Read(CellRef cell) const { return *reinterpret_cast<const float*>(store_.BlockOf(cell)->Row(cell.row).data()); }

  void Drop(CellRef first, uint32_t rows) {
    for (uint32_t i = 0; i < rows; ++i) {
      const CellRef cell{first.block, first.row + i};
      store_.Drop(std::span(&cell, 1));
    }
    store_.TakeGarbage();
  }

  const std::vector<uint32_t> columns_ = {0};
  const BlockSource source_{.memory = std::make_shared<WarmMemory>()};
  BlockStore store_;
};

TEST_F(BlockStoreTest, SmallPutsShareABlockAndLargeOnesGetTheirOwn) {
  const CellRef first = Put(3, 1), second = Put(2, 2), large = Put(100'000, 3), third = Put(1, 4);
  EXPECT_EQ(first.block, second.block);
  EXPECT_EQ(second.row, 3u);
  EXPECT_NE(large.block, first.block);
  EXPECT_EQ(third.block, first.block);
  EXPECT_EQ(Read(first), 1);
  EXPECT_EQ(Read(second), 2);
  EXPECT_EQ(Read({large.block, 99'999}), 3);
  EXPECT_EQ(Read(third), 4);
}

TEST_F(BlockStoreTest, ABlockGoesWithItsLastCell) {
  const CellRef large = Put(100'000, 3);
  Drop(large, 99'999);
  EXPECT_GE(source_.held->load(), 400'000);
  Drop({large.block, 99'999}, 1);
  EXPECT_EQ(source_.held->load(), 0);
  // Its number is used again.
  EXPECT_EQ(Put(100'000, 4).block, large.block);
}

TEST_F(BlockStoreTest, WhoeverLooksAtABlockKeepsIt) {
  const CellRef large = Put(100'000, 3);
  const std::shared_ptr<Block> view = store_.BlockOf(large);
  Drop(large, 100'000);
  EXPECT_GE(source_.held->load(), 400'000);
  EXPECT_EQ(*reinterpret_cast<const float*>(view->Row(5).data()), 3);
}

TEST_F(BlockStoreTest, NewWeightsOpenANewBlockAndStragglersDoNotCloseIt) {
  const CellRef old = Put(1, 1, 1), fresh = Put(1, 2, 2), straggler = Put(1, 3, 1), more = Put(1, 4, 2);
  EXPECT_NE(fresh.block, old.block);
  EXPECT_NE(straggler.block, old.block);
  EXPECT_EQ(more.block, fresh.block);
  EXPECT_EQ(store_.BlockOf(straggler)->shape().weights_version, 1);
  EXPECT_EQ(store_.BlockOf(straggler)->bytes(), 4);
}

TEST_F(BlockStoreTest, ALatePutOfOldWeightsDoesNotCloseTheBlockOfNewOnes) {
  const Batch batch = Floats(1, 9);
  auto placements = store_.Reserve(batch, columns_, 1);
  const CellRef fresh = Put(1, 2, 2);
  BlockStore::Write(batch, source_, placements);
  EXPECT_EQ(Read(store_.Publish(batch, columns_, placements)[0]), 9);
  EXPECT_EQ(Put(1, 3, 2).block, fresh.block);
}

TEST_F(BlockStoreTest, WritersOfOneColumnEachFillABlock) {
  const CellRef first = Put(1, 1, 1, 0), second = Put(1, 2, 1, 5);
  EXPECT_NE(second.block, first.block);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Put(1, 3, 1, 0).block, first.block);
    EXPECT_EQ(Put(1, 4, 1, 5).block, second.block);
  }
  EXPECT_EQ(store_.BlockOf(first)->shape().writer, 0u);
  EXPECT_EQ(store_.BlockOf(second)->shape().writer, 5u);
  EXPECT_EQ(Read({second.block, 100}), 4);
}

TEST_F(BlockStoreTest, MoreWritersThanBlocksAreOpenGetWhatEachPutNeeds) {
  std::vector<CellRef> cells;
  for (uint32_t writer = 0; writer < 4; ++writer) cells.push_back(Put(1, 1, 1, writer));
  const int64_t held = source_.held->load();
  const CellRef fifth = Put(2, 5, 1, 4);
  EXPECT_EQ(source_.held->load(), held + 8);
  EXPECT_EQ(store_.BlockOf(fifth)->shape().writer, 4u);
  EXPECT_NE(Put(1, 6, 1, 4).block, fifth.block);
  // They closed nobody's block.
  for (uint32_t writer = 0; writer < 4; ++writer) EXPECT_EQ(Put(1, 1, 1, writer).block, cells[writer].block);
  // With its cells a block goes, and the next writer has its place.
  Drop(cells[2], 2);
  const CellRef opened = Put(1, 7, 1, 4);
  EXPECT_EQ(Put(1, 8, 1, 4).block, opened.block);
  EXPECT_EQ(Put(1, 9, 1, 3).block, cells[3].block);
}

TEST_F(BlockStoreTest, AWriterThatIsDoneLeavesItsPlaceToTheNext) {
  for (uint32_t writer = 0; writer < 100; ++writer) {
    const CellRef first = Put(1, 1, 1, writer);
    EXPECT_EQ(Put(1, 1, 1, writer).block, first.block);
    store_.CloseFor(writer);
    EXPECT_NE(Put(1, 1, 1, writer).block, first.block);
    store_.CloseFor(writer);
  }
}

TEST_F(BlockStoreTest, WritersThatBeginTogetherCloseNobodysBlock) {
  const Batch batch = Floats(1, 9);
  std::vector<std::vector<BlockStore::Placement>> puts;
  for (uint32_t writer = 0; writer < 5; ++writer) {
    puts.push_back(store_.Reserve(batch, columns_, 1, writer));
    BlockStore::Write(batch, source_, puts.back());
  }
  std::vector<CellRef> cells;
  for (auto& placements : puts) cells.push_back(store_.Publish(batch, columns_, placements)[0]);
  for (uint32_t writer = 0; writer < 5; ++writer) {
    EXPECT_EQ(Put(1, 1, 1, writer).block == cells[writer].block, writer < 4) << writer;
  }
}

TEST_F(BlockStoreTest, AnAbandonedPutLeavesNothing) {
  Put(1, 1);
  const Batch batch = Floats(2, 9);
  auto placements = store_.Reserve(batch, columns_, 1);
  const auto others = store_.Reserve(batch, columns_, 1);
  BlockStore::Write(batch, source_, placements);
  store_.Abandon(placements);
  store_.Abandon(others);
  const CellRef next = Put(1, 2);
  EXPECT_EQ(next.row, 5u);
  EXPECT_EQ(Read(next), 2);
}

TEST_F(BlockStoreTest, ABlockWithAPutUnderWayStaysUntilItIsPublished) {
  const CellRef first = Put(1, 1);
  const Batch batch = Floats(2, 9);
  auto placements = store_.Reserve(batch, columns_, 1);
  Put(1, 2, 2);  // closes the block of version 1
  Drop(first, 1);
  BlockStore::Write(batch, source_, placements);
  const CellRef late = store_.Publish(batch, columns_, placements)[0];
  EXPECT_EQ(late.block, first.block);
  EXPECT_EQ(Read(late), 9);
  Drop(late, 2);
  EXPECT_NE(Put(1, 3, 2).block, late.block);
}

TEST_F(BlockStoreTest, BlocksGrowFromSmallToLarge) {
  Put(1, 1);
  EXPECT_LE(source_.held->load(), 8 << 10);
  for (int i = 0; i < 20'000; ++i) Put(16, 1);
  EXPECT_LE(source_.held->load(), 20'000 * 64 + (512 << 10));
}

TEST_F(BlockStoreTest, BlocksHaveATenthAnd64KibibytesMoreThanTheirCells) {
  for (const size_t columns : {1, 3, 16, 100}) {
    for (const size_t rows : {1, 3, 100, 1'100, 13'000, 20'000}) {
      Batch batch;
      std::vector<uint32_t> indices;
      for (size_t i = 0; i < columns; ++i) {
        EXPECT_TRUE(batch.Add(absl::StrCat(i), Column::FromValues<float>(std::vector<float>(rows, 1))).ok());
        indices.push_back(static_cast<uint32_t>(i));
      }
      BlockStore store;
      const BlockSource source{.memory = std::make_shared<WarmMemory>()};
      const int64_t put_bytes = static_cast<int64_t>(columns * rows * sizeof(float));
      const int64_t puts = std::min<int64_t>(3'000, (16 << 20) / put_bytes);
      for (int64_t bytes = put_bytes; bytes <= puts * put_bytes; bytes += put_bytes) {
        auto placements = store.Reserve(batch, indices, 1);
        BlockStore::Write(batch, source, placements);
        store.Publish(batch, indices, placements);
        ASSERT_LE(source.held->load(), bytes + bytes / 10 + (64 << 10)) << columns << " columns of " << rows;
      }
    }
  }
}

TEST_F(BlockStoreTest, WhereMemoryIsScarceRowsThatWentAreTakenOutOfTheirBlocks) {
  std::vector<CellRef> puts;
  for (int i = 0; i < 100; ++i) puts.push_back(Put(20'000, static_cast<float>(i)));
  for (const CellRef put : puts) Drop(put, 4'000);
  EXPECT_TRUE(store_.TakeCompactions().empty());
  const auto compact = [&] {
    std::vector<BlockStore::Compaction> compactions = store_.TakeCompactions();
    for (BlockStore::Compaction& compaction : compactions) {
      BlockStore::Copy(compaction, source_);
      store_.Install(compaction);
    }
    return compactions.size();
  };
  // Whoever looks at a block keeps it: a copy would come on top.
  std::shared_ptr<Block> view = store_.BlockOf(puts[7]);
  store_.LookForSparse(true);
  EXPECT_EQ(compact(), 99u);
  EXPECT_EQ(source_.held->load(), 99 * 64'000 + 80'000);
  view = nullptr;
  Drop({puts[7].block, 4'000}, 1);
  EXPECT_EQ(compact(), 1u);
  EXPECT_EQ(source_.held->load(), 100 * 64'000 - 4);
  for (size_t i = 0; i < puts.size(); ++i) {
    const CellRef cell{puts[i].block, 19'999};
    EXPECT_EQ(*reinterpret_cast<const float*>(store_.BlockOf(cell)->Row(store_.RowOf(cell)).data()),
              static_cast<float>(i));
  }
}

}  // namespace
}  // namespace tdock::dock
