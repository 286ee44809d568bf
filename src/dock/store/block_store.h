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

namespace tdock {

// Cells are rows of blocks. A writer's small puts of a column append to a block that is open for them; a large put gets
// a block of its own. A block goes when none of its rows is a cell any more and nobody looks at it. When less than a
// quarter of it is cells, or where memory is scarce than ten elevenths, a smaller block takes its place:
//
//   CellRef {id, row} ──► entry of id ──► block, row                         as it was put
//                                   └───► block, rank of row in `ranks`      since the rows of `ranks` moved together
//
// so that the cells' references stay good.
//
// A put is Reserve, then Write, which needs no lock, then Publish. A compaction is TakeCompactions, then Copy, which
// needs no lock, then Install. The other methods are not thread-safe; none of them copies or frees payload: what they
// let go of is handed to the caller, to be freed outside the lock.
class BlockStore {
 public:
  // Where the rows of one column of a put go.
  struct Placement {
    // The store keeps it while the put is under way.
    Block* block = nullptr;
    uint32_t id = 0;  // 0 for a block that is not in the store yet
    std::shared_ptr<Block> fresh;
    uint32_t first_row = 0;
    int64_t first_byte = 0;
    // Of the block that is to be made, if there is none.
    BlockShape shape;
    // Lets later puts append to that block.
    bool opens = false;
  };

  // A block that is about to be replaced by a smaller one.
  struct Compaction {
    uint32_t id = 0;
    std::shared_ptr<Block> block;
    std::shared_ptr<const RowRanks> ranks;
    RowBits live;
    // What Copy makes of them.
    std::shared_ptr<Block> new_block = {};
    std::shared_ptr<const RowRanks> new_ranks = {};
  };

  // Finds room in open blocks for the columns of the batch, or says what block to make. `columns` are the table's, in
  // the order of the batch; one beyond those that the store has seen has no open block. `writer` is as in BlockShape.
  std::vector<Placement> Reserve(const Batch& batch, std::span<const uint32_t> columns, int64_t weights_version,
                                 uint32_t writer = 0);

  // Makes the blocks that are missing, and copies the batch: but for large columns that lie in the source's memory
  // already, which become blocks where they are. Thread-safe.
  static void Write(const Batch& batch, const BlockSource& source, std::span<Placement> placements);

  // Makes what was written cells; returns the first of each column.
  std::vector<CellRef> Publish(const Batch& batch, std::span<const uint32_t> columns, std::span<Placement> placements);

  // Gives up what was reserved.
  void Abandon(std::span<const Placement> placements);

  // These are no cells any more.
  void Drop(std::span<const CellRef> cells);

  // This writer puts nothing more for the time being: others may have its places.
  void CloseFor(uint32_t writer);

  // The blocks that the store has let go of since the last call.
  std::vector<std::shared_ptr<Block>> TakeGarbage() { return std::exchange(garbage_, {}); }

  // Where memory is scarce, goes on looking for blocks that are worth copying. Called now and then, after Drop.
  void LookForSparse(bool memory_is_scarce);

  // The blocks that have become sparse since the last call. Each must be given to Install.
  std::vector<Compaction> TakeCompactions();
  // Copies what was live when the compaction was taken. Where there is no memory for that, does nothing. Thread-safe.
  static void Copy(Compaction& compaction, const BlockSource& source);
  // Puts the new block in the place of the old one, unless that is gone. The compaction keeps what is not needed.
  void Install(Compaction& compaction);

  const std::shared_ptr<Block>& BlockOf(CellRef cell) const { return entries_[cell.block].block; }
  // The row of that block.
  uint32_t RowOf(CellRef cell) const { return RowIn(entries_[cell.block], cell.row); }

 private:
  enum class Compacting : uint8_t { kNo, kListed, kTaken };

  struct Entry {
    std::shared_ptr<Block> block;
    std::shared_ptr<const RowRanks> ranks;  // null: rows are where they were put
    RowBits live;
    int64_t live_rows = 0;
    int64_t live_bytes = 0;  // of values
    // Puts that have reserved room in it and are not published.
    int32_t pending = 0;
    // Where it is open, if small puts append to it.
    struct OpenAt {
      uint32_t column;
      uint32_t slot;
    };
    std::optional<OpenAt> open_at = {};
    Compacting compacting = Compacting::kNo;
  };
  // The block that small puts of a writer to a column append to.
  struct Open {
    uint32_t writer = 0;
    uint32_t id = 0;  // 0: none
    int64_t used_rows = 0;
    int64_t used_bytes = 0;
    // How large the next one should be, with its offsets.
    int64_t next_bytes = kFirstBlockBytes;
  };
  // Of one column, which mostly has one writer. A place stays its writer's until it is needed and has no block.
  using Opens = absl::InlinedVector<Open, 1>;

  // Who writes a column beside so many others gets just what each put needs.
  static constexpr size_t kMostOpen = 4;
  static constexpr int64_t kFirstBlockBytes = 4 << 10;
  static constexpr int64_t kLargestOpenBytes = 256 << 10;
  static constexpr int64_t kLargePutBytes = 64 << 10;
  // The places in open blocks that are free have at most so much together and a tenth of what cells have; but each open
  // block may have the least.
  static constexpr int64_t kFreeInOpenBytes = 64 << 10;
  static constexpr int64_t kLeastOpenBytes = 512;
  // Where memory is scarce, a call copies blocks until they have more than this together.
  static constexpr int64_t kMostCopiedBytes = 32 << 20;
  // A block of its own costs a few hundred bytes beside those of its rows.
  static constexpr int64_t kLeastGainBytes = 512;

  static uint32_t RowIn(const Entry& entry, uint32_t row) {
    return entry.ranks == nullptr ? row : entry.ranks->Rank(row);
  }

  Placement ReserveColumn(const Column& column, Opens& opens, int64_t weights_version, uint32_t writer, int64_t share);
  // Of the free places in open blocks, when so many columns are put together.
  int64_t OpenShare(size_t columns) const;
  // The writer's place, or one that it may have; null if all are in use.
  static Open* FindPlace(Opens& opens, uint32_t writer);
  uint32_t AddEntry(std::shared_ptr<Block> block);
  void OpenFor(uint32_t column, const Placement& placement, int64_t used_rows, int64_t used_bytes);
  void Close(uint32_t id);
  void DropCell(CellRef cell);
  bool IsSparse(const Entry& entry) const;
  // What it occupies, without the places of an open one that are free.
  int64_t UsedBytes(const Entry& entry) const;
  // Frees an entry without cells, and lists a sparse one. Called when its cells or the puts under way have become
  // fewer.
  void Settle(uint32_t id);

  std::vector<Entry> entries_{1};  // by block id; 0 is none
  std::vector<uint32_t> free_ids_;
  std::vector<Opens> open_;  // by column
  std::vector<std::shared_ptr<Block>> garbage_;
  std::vector<uint32_t> sparse_;

  int64_t live_bytes_ = 0;  // of all entries
  size_t open_blocks_ = 0;
  bool scarce_ = false;
  int64_t listed_bytes_ = 0;  // of sparse_, as far as it is only for scarcity
  uint64_t dropped_ = 0;      // cells, since it was last begun to look for sparse entries
  size_t looked_at_ = 1;      // entries, since then
};

}  // namespace tdock
