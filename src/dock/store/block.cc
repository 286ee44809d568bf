#include "dock/store/block.h"

#include <cstring>
#include <utility>

namespace tdock::dock {

Block::Block(const BlockShape& shape, std::shared_ptr<HeldBytes> held, Buffer memory)
    : shape_(shape),
      memory_(std::move(memory)),
      values_(memory_.data()),
      offsets_(shape.kind == ColumnKind::kDense ? nullptr : Offsets()),
      held_(std::move(held)) {
  held_->Add(bytes());
}

Block::Block(const BlockShape& shape, std::shared_ptr<HeldBytes> held, Column column)
    : shape_(shape),
      adopted_(std::move(column)),
      values_(adopted_->PayloadBytes().data()),
      offsets_(adopted_->offsets().data()),
      held_(std::move(held)) {
  held_->Add(bytes());
}

Block::~Block() { held_->Subtract(bytes()); }

void Block::Write(uint32_t first_row, int64_t first_byte, const Column& column, const BulkCopy& copy) {
  const auto payload = column.PayloadBytes();
  copy(memory_.mutable_data() + first_byte, payload.data(), payload.size());
  if (shape_.kind == ColumnKind::kDense) return;
  const std::span<const int64_t> from = column.offsets();
  int64_t* const to = Offsets() + first_row;
  const int64_t shift = first_byte / shape_.item_bytes - from[0];
  for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] + shift;
}

void Block::WriteRows(const Block& from, std::span<const uint32_t> rows) {
  std::byte* const first = memory_.mutable_data();
  std::byte* end = first;
  for (size_t i = 0; i < rows.size();) {
    // Rows that lie one behind the other are copied as one.
    const std::byte* const begin = from.Row(rows[i]).data();
    size_t run = 0;
    for (; i < rows.size() && from.Row(rows[i]).data() == begin + run; ++i) {
      if (shape_.kind != ColumnKind::kDense) {
        Offsets()[i] = (end - first + static_cast<ptrdiff_t>(run)) / shape_.item_bytes;
      }
      run += from.Row(rows[i]).size();
    }
    if (run > 0) std::memcpy(end, begin, run);
    end += run;
  }
  if (shape_.kind != ColumnKind::kDense) Offsets()[rows.size()] = (end - first) / shape_.item_bytes;
}

std::shared_ptr<Block> BlockSource::MakeOf(const BlockShape& shape, const Column& column, const BulkCopy& copy) const {
  const std::byte* const values = column.PayloadBytes().data();
  const std::span<const int64_t> offsets = column.offsets();
  const bool lies_as_in_a_block =
      reinterpret_cast<uintptr_t>(values) % Buffer::kAlignment == 0 && (offsets.empty() || offsets[0] == 0);
  if (lies_as_in_a_block && memory->Holds(values) &&
      (offsets.empty() || memory->Holds(reinterpret_cast<const std::byte*>(offsets.data())))) {
    return std::make_shared<Block>(shape, held, column);
  }
  std::shared_ptr<Block> block = Make(shape);
  block->Write(/*first_row=*/0, /*first_byte=*/0, column, copy);
  return block;
}

}  // namespace tdock::dock
