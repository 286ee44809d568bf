// The bytes of a partition's cells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dock/store/block.h"
#include "dock/table/page.h"
#include "dock/table/row_ranks.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::dock {

// Cells are rows of blocks. Small puts of a writer to a column append to a block that is open for them; a large put
// gets a block of its own. A block is freed once none of its rows is a cell and no view uses it. When less than a
// quarter of it is cells, or if memory is scarce less than ten elevenths, a smaller block replaces it:
//
//   CellRef {id, row} ──► entry of id ──► block, row                         as it was put
//                                   └───► block, rank of row in `ranks`      since the rows of `ranks` moved together
//
// so that the cells' references stay valid.
//
// A put is Reserve, then Write, which needs no lock, then Publish. A compaction is TakeCompactions, then Copy, which
// needs no lock, then Install. The other methods are not thread-safe; none of them copies or frees payload: what they
// release is handed to the caller, to be freed outside the lock.
class BlockStore {
 public:
  // Where the rows of one column of a put go.
  struct Placement {
    // The store keeps the block during the put.
    Block* block = nullptr;
    uint32_t id = 0;  // 0 for a block that is not in the store yet
    std::shared_ptr<Block> fresh;
    uint32_t first_row = 0;
    int64_t first_byte = 0;
    // The shape of the block to make, if there is none.
    BlockShape shape;
    // Lets later puts append to the new block.
    bool opens = false;
  };

  // A block that is about to be replaced by a smaller one.
  struct Compaction {
    uint32_t id = 0;
    std::shared_ptr<Block> block;
    std::shared_ptr<const RowRanks> ranks;
    RowBits live;
    // The result of Copy.
    std::shared_ptr<Block> new_block = {};
    std::shared_ptr<const RowRanks> new_ranks = {};
  };

  // Finds room in open blocks for the columns of the batch, or determines which blocks to make. `columns` are the
  // table's, in the order of the batch; one beyond those that the store has seen has no open block. `writer` is as in
  // BlockShape.
  std::vector<Placement> Reserve(const Batch& batch, std::span<const uint32_t> columns, int64_t weights_version,
                                 uint32_t writer = 0);

  // Makes the missing blocks, and copies the batch; large columns that lie in the source's memory already become blocks
  // in place, without a copy. Thread-safe.
  static void Write(const Batch& batch, const BlockSource& source, std::span<Placement> placements);

  // Publishes what was written as cells; returns the first cell of each column.
  std::vector<CellRef> Publish(const Batch& batch, std::span<const uint32_t> columns, std::span<Placement> placements);

  // Releases what was reserved.
  void Abandon(std::span<const Placement> placements);

  // Removes these cells.
  void Drop(std::span<const CellRef> cells);

  // This writer puts nothing more for now: others may take over its open blocks.
  void CloseFor(uint32_t writer);

  // The blocks that the store has released since the last call.
  std::vector<std::shared_ptr<Block>> TakeGarbage() { return std::exchange(garbage_, {}); }

  // If memory is scarce, continues to look for blocks worth copying. Called now and then, after Drop.
  void LookForSparse(bool memory_is_scarce);

  // The blocks that have become sparse since the last call. Each must be given to Install.
  std::vector<Compaction> TakeCompactions();
  // Copies the cells that were live when the compaction was taken. Does nothing if there is no memory for that.
  // Thread-safe.
  static void Copy(Compaction& compaction, const BlockSource& source);
  // Replaces the old block by the new one, unless the old one is gone. What is not needed stays in the compaction.
  void Install(Compaction& compaction);

  const std::shared_ptr<Block>& BlockOf(CellRef cell) const { return entries_[cell.block].block; }
  // The row of the cell's block.
  uint32_t RowOf(CellRef cell) const { return RowIn(entries_[cell.block], cell.row); }

 private:
  enum class Compacting : uint8_t { kNo, kListed, kTaken };

  struct Entry {
    std::shared_ptr<Block> block;
    std::shared_ptr<const RowRanks> ranks;  // null: rows are where they were put
    RowBits live;
    int64_t live_rows = 0;
    int64_t live_bytes = 0;  // of values
    // Puts that have reserved room in it and are not published yet.
    int32_t pending = 0;
    // The position of its open block, if small puts append to it.
    struct OpenAt {
      uint32_t column;
      uint32_t slot;
    };
    std::optional<OpenAt> open_at = {};
    Compacting compacting = Compacting::kNo;
  };
  // The block that a writer's small puts to a column append to.
  struct Open {
    uint32_t writer = 0;
    uint32_t id = 0;  // 0: none
    int64_t used_rows = 0;
    int64_t used_bytes = 0;
    // The size of the next one, including its offsets.
    int64_t next_bytes = kFirstBlockBytes;
  };
  // For one column, which usually has one writer. A writer keeps its slot until another one needs it and it has no
  // block.
  using Opens = absl::InlinedVector<Open, 1>;

  // If a column has more writers than this, each further put gets a block of exactly its size.
  static constexpr size_t kMostOpen = 4;
  static constexpr int64_t kFirstBlockBytes = 4 << 10;
  static constexpr int64_t kLargestOpenBytes = 256 << 10;
  static constexpr int64_t kLargePutBytes = 64 << 10;
  // Free room in open blocks is limited to this much and a tenth of what cells occupy, in total; but every open block
  // may have the minimum.
  static constexpr int64_t kFreeInOpenBytes = 64 << 10;
  static constexpr int64_t kLeastOpenBytes = 512;
  // If memory is scarce, a call copies blocks until they have more than this together.
  static constexpr int64_t kMostCopiedBytes = 32 << 20;
  // A block costs a few hundred bytes beyond those of its rows.
  static constexpr int64_t kLeastGainBytes = 512;

  static uint32_t RowIn(const Entry& entry, uint32_t row) {
    return entry.ranks == nullptr ? row : entry.ranks->Rank(row);
  }

  Placement ReserveColumn(const Column& column, Opens& opens, int64_t weights_version, uint32_t writer, int64_t share);
  // The limit on free room in an open block, when this many columns are put together.
  int64_t OpenShare(size_t columns) const;
  // The writer's slot, or one that it may take over; null if all are in use.
  static Open* FindPlace(Opens& opens, uint32_t writer);
  uint32_t AddEntry(std::shared_ptr<Block> block);
  void OpenFor(uint32_t column, const Placement& placement, int64_t used_rows, int64_t used_bytes);
  void Close(uint32_t id);
  void DropCell(CellRef cell);
  bool IsSparse(const Entry& entry) const;
  // What it occupies, not counting free room of an open block.
  int64_t UsedBytes(const Entry& entry) const;
  // Frees an entry without cells, and lists a sparse one. Called when its number of cells or unpublished puts has
  // decreased.
  void Settle(uint32_t id);

  std::vector<Entry> entries_{1};  // by block id; 0 is none
  std::vector<uint32_t> free_ids_;
  std::vector<Opens> open_;  // by column
  std::vector<std::shared_ptr<Block>> garbage_;
  std::vector<uint32_t> sparse_;

  int64_t live_bytes_ = 0;  // of all entries
  size_t open_blocks_ = 0;
  bool scarce_ = false;
  int64_t listed_bytes_ = 0;  // of sparse_: those listed only because memory is scarce
  uint64_t dropped_ = 0;      // cells, when the last search for sparse entries began
  size_t looked_at_ = 1;      // entries, likewise
};

}  // namespace tdock::dock
