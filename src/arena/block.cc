#include "arena/block.h"

#include <cstring>
#include <utility>

namespace tdock {

Block::Block(const BlockShape& shape, std::shared_ptr<HeldBytes> held, Memory& memory)
    : shape_(shape),
      offsets_at_((static_cast<size_t>(shape.value_capacity_bytes) + alignof(int64_t) - 1) / alignof(int64_t) *
                  alignof(int64_t)),
      memory_(memory.Allocate(shape.kind == ColumnKind::kDense
                                  ? static_cast<size_t>(shape.value_capacity_bytes)
                                  : offsets_at_ + static_cast<size_t>(shape.row_capacity) * sizeof(int64_t))),
      held_(std::move(held)) {
  held_->fetch_add(bytes(), std::memory_order_relaxed);
}

Block::~Block() { held_->fetch_sub(bytes(), std::memory_order_relaxed); }

void Block::Write(uint32_t first_row, int64_t first_byte, const Column& column) {
  const auto payload = column.PayloadBytes();
  if (!payload.empty()) std::memcpy(memory_.mutable_data() + first_byte, payload.data(), payload.size());
  if (shape_.kind == ColumnKind::kDense) return;
  const std::span<const int64_t> from = column.offsets();
  int64_t* const to = reinterpret_cast<int64_t*>(memory_.mutable_data() + offsets_at_) + first_row;
  const int64_t shift = first_byte / shape_.item_bytes - from[0];
  for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] + shift;
}

}  // namespace tdock
