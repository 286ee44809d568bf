// The bytes of a partition's cells.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arena/block.h"
#include "dock/page.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock {

// Cells are rows of blocks. A column's small puts append to a block that is open for it; a large one gets a block of
// its own. A block goes when none of its rows is a cell any more and nobody looks at it.
//
// A put is Reserve, then Write, which needs no lock, then Publish. The other methods are not thread-safe; none of them
// copies or frees payload: what they let go of is handed to the caller, to be freed outside the lock.
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

  // Finds room in open blocks for the columns of the batch, or says what block to make. `columns` are the table's, in
  // the order of the batch; one beyond those that the store has seen has no open block.
  std::vector<Placement> Reserve(const Batch& batch, std::span<const uint32_t> columns, int64_t weights_version);

  // Makes the blocks that are missing, and copies the batch. Thread-safe.
  static void Write(const Batch& batch, const BlockSource& source, std::span<Placement> placements);

  // Makes what was written cells; returns the first of each column.
  std::vector<CellRef> Publish(const Batch& batch, std::span<const uint32_t> columns, std::span<Placement> placements);

  // Gives up what was reserved.
  void Abandon(std::span<const Placement> placements);

  // These are no cells any more.
  void Drop(std::span<const CellRef> cells);

  // The blocks that the store has let go of since the last call.
  std::vector<std::shared_ptr<Block>> TakeGarbage() { return std::exchange(garbage_, {}); }

  const std::shared_ptr<Block>& BlockOf(CellRef cell) const { return entries_[cell.block].block; }

 private:
  struct Entry {
    std::shared_ptr<Block> block;
    int64_t live_rows = 0;
    // Puts that have reserved room in it and are not published.
    int32_t pending = 0;
    bool open = false;
  };
  // The block that small puts of a column append to.
  struct Open {
    uint32_t id = 0;  // 0: none
    int64_t used_rows = 0;
    int64_t used_bytes = 0;
    // How large the next one should be.
    int64_t next_bytes = kFirstBlockBytes;
  };

  static constexpr int64_t kFirstBlockBytes = 4 << 10;
  static constexpr int64_t kLargestOpenBytes = 256 << 10;
  static constexpr int64_t kLargePutBytes = 64 << 10;

  Placement ReserveColumn(const Column& column, Open* open, int64_t weights_version);
  void FreeIfUnused(uint32_t id);

  std::vector<Entry> entries_{1};  // by block id; 0 is none
  std::vector<uint32_t> free_ids_;
  std::vector<Open> open_;  // by column
  std::vector<std::shared_ptr<Block>> garbage_;
};

}  // namespace tdock
