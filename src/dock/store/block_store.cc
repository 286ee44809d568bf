#include "dock/store/block_store.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tdock::dock {
namespace {

void SetBits(RowBits& bits, uint32_t first, uint32_t count) {
  for (uint32_t row = first; row < first + count;) {
    const uint32_t end = std::min(first + count, (row / 64 + 1) * 64);
    bits[row / 64] |= ~uint64_t{0} >> (64 - (end - row)) << row % 64;
    row = end;
  }
}

}  // namespace

BlockStore::Open* BlockStore::FindPlace(Opens& opens, uint32_t writer) {
  Open* free = nullptr;
  for (Open& open : opens) {
    if (open.writer == writer) return &open;
    if (open.id == 0) free = &open;
  }
  if (opens.size() < kMostOpen) return &opens.emplace_back(Open{.writer = writer});
  if (free != nullptr) *free = {.writer = writer};
  return free;
}

int64_t BlockStore::OpenShare(size_t columns) const {
  const auto blocks = static_cast<int64_t>(std::max({open_blocks_, columns, size_t{1}}));
  return std::max(kLeastOpenBytes, (kFreeInOpenBytes + live_bytes_ / 10) / blocks);
}

BlockStore::Placement BlockStore::ReserveColumn(const Column& column, Opens& opens, int64_t weights_version,
                                                uint32_t writer, int64_t share) {
  const ColumnKind kind = column.type().kind;
  const int64_t places = Block::RowPlaces(kind, column.rows()), bytes = column.payload_bytes();
  Placement placement;
  placement.shape = {kind, column.item_bytes(), places, bytes, weights_version, writer};
  if (bytes >= kLargePutBytes) return placement;

  Open* const open = FindPlace(opens, writer);
  if (open == nullptr) return placement;
  if (open->id != 0) {
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
    // A late put of older weights gets a block of exactly its size: the open block stays for the new weights.
    if (weights_version < shape.weights_version) return placement;
  }

  // Room for several puts like this one, so that they fill it up.
  const int64_t put_bytes = std::max(Block::BytesFor(kind, places, bytes), places);
  const int64_t puts = std::max<int64_t>(1, std::min(open->next_bytes, share) / put_bytes);
  placement.shape.row_capacity = puts * places;
  // Cells without bytes need a place, too.
  placement.shape.value_capacity_bytes = std::max<int64_t>(1, puts * bytes);
  placement.opens = true;
  return placement;
}

std::vector<BlockStore::Placement> BlockStore::Reserve(const Batch& batch, std::span<const uint32_t> columns,
                                                       int64_t weights_version, uint32_t writer) {
  std::vector<Placement> placements;
  placements.reserve(columns.size());
  const int64_t share = OpenShare(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    Opens none;
    Opens& opens = columns[i] < open_.size() ? open_[columns[i]] : none;
    placements.push_back(ReserveColumn(batch.columns()[i].column, opens, weights_version, writer, share));
  }
  return placements;
}

void BlockStore::Write(const Batch& batch, const BlockSource& source, std::span<Placement> placements) {
  int64_t total_bytes = 0;
  for (const NamedColumn& column : batch.columns()) total_bytes += column.column.payload_bytes();
  const BulkCopy copy(static_cast<size_t>(total_bytes));
  for (size_t i = 0; i < placements.size(); ++i) {
    Placement& placement = placements[i];
    const Column& column = batch.columns()[i].column;
    if (placement.block == nullptr && column.payload_bytes() >= kLargePutBytes) {
      placement.fresh = source.MakeOf(placement.shape, column, copy);
      placement.block = placement.fresh.get();
      continue;
    }
    if (placement.block == nullptr) {
      placement.fresh = source.Make(placement.shape);
      placement.block = placement.fresh.get();
    }
    placement.block->Write(placement.first_row, placement.first_byte, column, copy);
  }
}

std::vector<CellRef> BlockStore::Publish(const Batch& batch, std::span<const uint32_t> columns,
                                         std::span<Placement> placements) {
  std::vector<CellRef> cells;
  cells.reserve(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    Placement& placement = placements[i];
    if (placement.id == 0) placement.id = AddEntry(std::move(placement.fresh));
    Entry& entry = entries_[placement.id];
    --entry.pending;
    const int64_t bytes = batch.columns()[i].column.payload_bytes();
    entry.live_rows += batch.rows();
    entry.live_bytes += bytes;
    live_bytes_ += bytes;
    SetBits(entry.live, placement.first_row, static_cast<uint32_t>(batch.rows()));
    cells.push_back({placement.id, placement.first_row});
    if (placement.opens) {
      OpenFor(columns[i], placement, Block::RowPlaces(placement.shape.kind, batch.rows()), bytes);
    }
    Settle(placement.id);
  }
  return cells;
}

uint32_t BlockStore::AddEntry(std::shared_ptr<Block> block) {
  if (free_ids_.empty()) {
    free_ids_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t id = free_ids_.back();
  free_ids_.pop_back();
  Entry& entry = entries_[id];
  entry.live.resize(static_cast<size_t>(block->shape().row_capacity + 63) / 64);
  entry.block = std::move(block);
  entry.pending = 1;
  return id;
}

void BlockStore::OpenFor(uint32_t column, const Placement& placement, int64_t used_rows, int64_t used_bytes) {
  if (column >= open_.size()) open_.resize(column + 1);
  Open* const open = FindPlace(open_[column], placement.shape.writer);
  // Other puts have opened theirs while this one was writing.
  if (open == nullptr) return;
  const uint32_t old = open->id;
  if (old != 0) {
    // Another put has opened a block for newer weights while this one was writing.
    if (placement.shape.weights_version < entries_[old].block->shape().weights_version) return;
    Close(old);
  }
  entries_[placement.id].open_at = {.column = column, .slot = static_cast<uint32_t>(open - open_[column].data())};
  *open = {.writer = placement.shape.writer,
           .id = placement.id,
           .used_rows = used_rows,
           .used_bytes = used_bytes,
           .next_bytes = std::clamp(2 * Block::BytesFor(placement.shape), kFirstBlockBytes, kLargestOpenBytes)};
  ++open_blocks_;
  if (old != 0) Settle(old);
}

void BlockStore::Close(uint32_t id) {
  const Entry::OpenAt at = *std::exchange(entries_[id].open_at, std::nullopt);
  Open& open = open_[at.column][at.slot];
  open.id = 0;
  --open_blocks_;
  // What was not needed this time is not needed next time.
  const int64_t used = Block::BytesFor(entries_[id].block->shape().kind, open.used_rows, open.used_bytes);
  open.next_bytes = std::clamp(2 * used, kFirstBlockBytes, open.next_bytes);
}

void BlockStore::CloseFor(uint32_t writer) {
  for (const Opens& opens : open_) {
    for (const Open& open : opens) {
      if (open.writer != writer || open.id == 0) continue;
      const uint32_t id = open.id;
      Close(id);
      Settle(id);
    }
  }
}

void BlockStore::Abandon(std::span<const Placement> placements) {
  for (const Placement& placement : placements) {
    if (placement.id == 0) continue;
    --entries_[placement.id].pending;
    Settle(placement.id);
  }
}

void BlockStore::Drop(std::span<const CellRef> cells) {
  // All cells of a step follow their references in lockstep, so that their cache misses overlap.
  constexpr size_t kStep = 32;
  for (; !cells.empty(); cells = cells.subspan(std::min(kStep, cells.size()))) {
    const std::span<const CellRef> step = cells.first(std::min(kStep, cells.size()));
    for (const CellRef cell : step) __builtin_prefetch(&entries_[cell.block]);
    for (const CellRef cell : step) {
      const Entry& entry = entries_[cell.block];
      __builtin_prefetch(entry.block.get());
      __builtin_prefetch(entry.live.data() + cell.row / 64);
    }
    for (const CellRef cell : step) DropCell(cell);
  }
}

void BlockStore::DropCell(CellRef cell) {
  Entry& entry = entries_[cell.block];
  const auto bytes = static_cast<int64_t>(entry.block->Row(RowIn(entry, cell.row)).size());
  --entry.live_rows;
  entry.live_bytes -= bytes;
  live_bytes_ -= bytes;
  ++dropped_;
  entry.live[cell.row / 64] &= ~(uint64_t{1} << cell.row % 64);
  Settle(cell.block);
}

int64_t BlockStore::UsedBytes(const Entry& entry) const {
  if (!entry.open_at.has_value()) return entry.block->bytes();
  const Open& open = open_[entry.open_at->column][entry.open_at->slot];
  return Block::BytesFor(entry.block->shape().kind, open.used_rows, open.used_bytes);
}

bool BlockStore::IsSparse(const Entry& entry) const {
  const ColumnKind kind = entry.block->shape().kind;
  const int64_t compact = Block::BytesFor(kind, Block::RowPlaces(kind, entry.live_rows), entry.live_bytes);
  const int64_t used = UsedBytes(entry);
  if (used - compact < kLeastGainBytes) return false;
  if (4 * compact < used) return true;
  // A view of a block keeps it alive next to its copy.
  const bool worth_it = scarce_ && listed_bytes_ < kMostCopiedBytes && entry.block.use_count() == 1;
  return worth_it && 11 * compact < 10 * used;
}

void BlockStore::LookForSparse(bool memory_is_scarce) {
  scarce_ = memory_is_scarce;
  if (!scarce_) return;
  // A search that has begun is finished; a new one begins only when its cost is small per removed cell.
  if (looked_at_ >= entries_.size() && 8 * dropped_ >= entries_.size()) {
    looked_at_ = 1;
    dropped_ = 0;
  }
  for (; looked_at_ < entries_.size() && listed_bytes_ < kMostCopiedBytes; ++looked_at_) {
    if (entries_[looked_at_].block != nullptr) Settle(static_cast<uint32_t>(looked_at_));
  }
}

void BlockStore::Settle(uint32_t id) {
  Entry& entry = entries_[id];
  const bool empty = entry.live_rows == 0;
  if (!empty && (entry.compacting != Compacting::kNo || !IsSparse(entry))) return;
  // Puts in progress publish where they have reserved, but no other puts do.
  if (entry.open_at.has_value() && (!empty || entry.pending == 0)) Close(id);
  if (entry.pending > 0) return;
  if (empty) {
    garbage_.push_back(std::move(entry.block));
    entry = Entry();
    free_ids_.push_back(id);
  } else {
    entry.compacting = Compacting::kListed;
    if (scarce_) listed_bytes_ += entry.live_bytes;
    sparse_.push_back(id);
  }
}

std::vector<BlockStore::Compaction> BlockStore::TakeCompactions() {
  std::vector<Compaction> compactions;
  listed_bytes_ = 0;
  for (uint32_t id : std::exchange(sparse_, {})) {
    Entry& entry = entries_[id];
    if (entry.compacting != Compacting::kListed) continue;  // it is free again
    entry.compacting = Compacting::kTaken;
    compactions.push_back({.id = id, .block = entry.block, .ranks = entry.ranks, .live = entry.live});
  }
  return compactions;
}

void BlockStore::Copy(Compaction& compaction, const BlockSource& source) {
  const Block& block = *compaction.block;
  auto ranks = std::make_shared<const RowRanks>(std::move(compaction.live));
  std::vector<uint32_t> rows;
  rows.reserve(ranks->size());
  BlockShape shape = block.shape();
  shape.value_capacity_bytes = 0;
  ranks->ForEach([&](uint32_t row) {
    rows.push_back(compaction.ranks == nullptr ? row : compaction.ranks->Rank(row));
    shape.value_capacity_bytes += static_cast<int64_t>(block.Row(rows.back()).size());
  });
  shape.row_capacity = Block::RowPlaces(shape.kind, ranks->size());
  try {
    compaction.new_block = source.MakeToReplace(shape);
  } catch (const std::bad_alloc&) {
    return;  // memory use would fall, but only after it had risen
  }
  compaction.new_block->WriteRows(block, rows);
  compaction.new_ranks = std::move(ranks);
}

void BlockStore::Install(Compaction& compaction) {
  Entry& entry = entries_[compaction.id];
  if (entry.block != compaction.block) return;
  entry.compacting = Compacting::kNo;
  if (compaction.new_block == nullptr) return;
  entry.block = std::move(compaction.new_block);
  entry.ranks.swap(compaction.new_ranks);
  Settle(compaction.id);
}

}  // namespace tdock::dock
