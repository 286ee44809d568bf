#include "dock/block_store.h"

#include <algorithm>
#include <utility>

namespace tdock {

BlockStore::Placement BlockStore::ReserveColumn(const Column& column, Open* open, int64_t weights_version) {
  const ColumnKind kind = column.type().kind;
  const int64_t places = Block::RowPlaces(kind, column.rows()), bytes = column.payload_bytes();
  Placement placement;
  placement.shape = {kind, column.item_bytes(), places, bytes, weights_version};
  if (bytes >= kLargePutBytes) return placement;

  if (open != nullptr && open->id != 0) {
    Entry& entry = entries_[open->id];
    const BlockShape& shape = entry.block->shape();
    if (shape.weights_version == weights_version && places <= shape.row_capacity - open->used_rows &&
        bytes <= shape.value_capacity_bytes - open->used_bytes) {
      ++entry.pending;
      placement.block = entry.block.get();
      placement.id = open->id;
      placement.first_row = static_cast<uint32_t>(open->used_rows);
      placement.first_byte = open->used_bytes;
      open->used_rows += places;
      open->used_bytes += bytes;
      return placement;
    }
    // A straggler of older weights gets just what it needs: the open block stays for the new ones.
    if (weights_version < shape.weights_version) return placement;
  }

  const int64_t capacity = std::max(bytes, open != nullptr ? open->next_bytes : kFirstBlockBytes);
  const int64_t row_bytes = std::max<int64_t>(bytes / column.rows(), kind == ColumnKind::kDense ? 1 : 8);
  placement.shape.row_capacity = std::max(places, capacity / row_bytes);
  placement.shape.value_capacity_bytes = capacity;
  placement.opens = true;
  return placement;
}

std::vector<BlockStore::Placement> BlockStore::Reserve(const Batch& batch, std::span<const uint32_t> columns,
                                                       int64_t weights_version) {
  std::vector<Placement> placements;
  placements.reserve(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    Open* const open = columns[i] < open_.size() ? &open_[columns[i]] : nullptr;
    placements.push_back(ReserveColumn(batch.columns()[i].column, open, weights_version));
  }
  return placements;
}

void BlockStore::Write(const Batch& batch, const BlockSource& source, std::span<Placement> placements) {
  for (size_t i = 0; i < placements.size(); ++i) {
    Placement& placement = placements[i];
    if (placement.block == nullptr) {
      placement.fresh = source.Make(placement.shape);
      placement.block = placement.fresh.get();
    }
    placement.block->Write(placement.first_row, placement.first_byte, batch.columns()[i].column);
  }
}

std::vector<CellRef> BlockStore::Publish(const Batch& batch, std::span<const uint32_t> columns,
                                         std::span<Placement> placements) {
  std::vector<CellRef> cells;
  cells.reserve(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    Placement& placement = placements[i];
    if (placement.id == 0) {
      if (free_ids_.empty()) {
        placement.id = static_cast<uint32_t>(entries_.size());
        entries_.emplace_back();
      } else {
        placement.id = free_ids_.back();
        free_ids_.pop_back();
      }
      entries_[placement.id] = {.block = std::move(placement.fresh), .live_rows = 0, .pending = 1, .open = false};
    }
    Entry& entry = entries_[placement.id];
    --entry.pending;
    entry.live_rows += batch.rows();
    cells.push_back({placement.id, placement.first_row});
    if (!placement.opens) continue;
    if (columns[i] >= open_.size()) open_.resize(columns[i] + 1);
    Open& open = open_[columns[i]];
    entry.open = true;
    const uint32_t closed = std::exchange(open.id, placement.id);
    open.used_rows = Block::RowPlaces(placement.shape.kind, batch.rows());
    open.used_bytes = batch.columns()[i].column.payload_bytes();
    open.next_bytes = std::min(2 * placement.shape.value_capacity_bytes, kLargestOpenBytes);
    if (closed != 0) {
      entries_[closed].open = false;
      FreeIfUnused(closed);
    }
  }
  return cells;
}

void BlockStore::Abandon(std::span<const Placement> placements) {
  for (const Placement& placement : placements) {
    if (placement.id == 0) continue;
    --entries_[placement.id].pending;
    FreeIfUnused(placement.id);
  }
}

void BlockStore::Drop(std::span<const CellRef> cells) {
  for (const CellRef cell : cells) {
    if (--entries_[cell.block].live_rows == 0) FreeIfUnused(cell.block);
  }
}

void BlockStore::FreeIfUnused(uint32_t id) {
  Entry& entry = entries_[id];
  if (entry.open || entry.live_rows > 0 || entry.pending > 0) return;
  garbage_.push_back(std::move(entry.block));
  free_ids_.push_back(id);
}

}  // namespace tdock
