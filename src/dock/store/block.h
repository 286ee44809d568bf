// Rows of one column in memory that a dock owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/notifier.h"
#include "core/tensor/bulk_copy.h"
#include "dock/store/cell_memory.h"
#include "tdock/column.h"

namespace tdock::dock {

// The bytes that blocks occupy. Outlives them all, therefore shared. Thread-safe.
class HeldBytes {
 public:
  // The notifier is called when the count falls, if it is being watched; it may be null.
  explicit HeldBytes(std::shared_ptr<Notifier> notifier = nullptr) : notifier_(std::move(notifier)) {}

  int64_t load() const { return bytes_.load(); }
  // Has the notifier called once, when the count falls below what a later load() returns.
  void Watch() { watched_ = true; }
  void Add(int64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  // May be called with any lock held.
  void Subtract(int64_t bytes) {
    bytes_.fetch_sub(bytes);
    if (watched_ && watched_.exchange(false) && notifier_ != nullptr) notifier_->Notify();
  }

 private:
  const std::shared_ptr<Notifier> notifier_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<bool> watched_{false};
};

struct BlockShape {
  ColumnKind kind = ColumnKind::kDense;
  int64_t item_bytes = 1;
  // Rows and bytes of values that fit.
  int64_t row_capacity = 0;
  int64_t value_capacity_bytes = 0;
  int64_t weights_version = -1;
  // The writer of the rows: a number chosen by the owner, 0 for none.
  uint32_t writer = 0;
};

// Storage for rows of one column, all made by the same version of the weights and put by the same writer. Each put that
// appends to it has a part of its own, which no other put writes; a row is read only after its put was published. So it
// needs no lock of its own. Layout:
//
//   values   | rows of put 1 | rows of put 2 |         dense: row r at r × item
//   offsets  | 0 | 2 | 9 |  9 | 12 | …                 other kinds, in items. A put of k rows takes k + 1 places, so
//                                                      that no two puts share one; the last of them is no row.
class Block {
 public:
  // `memory` must have BytesFor(shape).
  Block(const BlockShape& shape, std::shared_ptr<HeldBytes> held, Buffer memory);
  // The rows of a column in place, which must never be written again. Its shape is what a copy of it would have.
  Block(const BlockShape& shape, std::shared_ptr<HeldBytes> held, Column column);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const BlockShape& shape() const { return shape_; }
  // The bytes that it occupies.
  int64_t bytes() const { return BytesFor(shape_); }

  // Copies all rows of `column` to the rows from `first_row` on, with their values from `first_byte` on.
  void Write(uint32_t first_row, int64_t first_byte, const Column& column, const BulkCopy& copy);
  // Copies these rows, ascending, of a block of the same kind and item size to the first rows of this one.
  void WriteRows(const Block& from, std::span<const uint32_t> rows);

  std::span<const std::byte> Row(uint32_t row) const {
    const int64_t item = shape_.item_bytes;
    if (shape_.kind == ColumnKind::kDense) return {values_ + row * item, static_cast<size_t>(item)};
    const int64_t* const offset = offsets_ + row;
    return {values_ + offset[0] * item, static_cast<size_t>((offset[1] - offset[0]) * item)};
  }

  // The row places that `rows` rows of one put take.
  static int64_t RowPlaces(ColumnKind kind, int64_t rows) { return kind == ColumnKind::kDense ? rows : rows + 1; }
  // The bytes of a block for this many places and bytes of values.
  static int64_t BytesFor(ColumnKind kind, int64_t places, int64_t value_bytes) {
    return kind == ColumnKind::kDense ? value_bytes : OffsetsAt(value_bytes) + places * kOffsetBytes;
  }
  static int64_t BytesFor(const BlockShape& shape) {
    return BytesFor(shape.kind, shape.row_capacity, shape.value_capacity_bytes);
  }

 private:
  static constexpr int64_t kOffsetBytes = sizeof(int64_t);
  static int64_t OffsetsAt(int64_t value_bytes) {
    return (value_bytes + kOffsetBytes - 1) / kOffsetBytes * kOffsetBytes;
  }
  // In its own memory.
  int64_t* Offsets() {
    return reinterpret_cast<int64_t*>(memory_.mutable_data() + OffsetsAt(shape_.value_capacity_bytes));
  }

  const BlockShape shape_;
  // One of these two keeps the bytes alive.
  Buffer memory_;
  const std::optional<Column> adopted_;
  const std::byte* const values_;
  const int64_t* const offsets_;
  const std::shared_ptr<HeldBytes> held_;
};

// The allocator of one owner's blocks. Thread-safe.
struct BlockSource {
  std::shared_ptr<CellMemory> memory;
  // The bytes that the blocks occupy, including those that only readers own.
  std::shared_ptr<HeldBytes> held = std::make_shared<HeldBytes>();

  std::shared_ptr<Block> Make(const BlockShape& shape) const {
    return std::make_shared<Block>(shape, held, memory->Allocate(static_cast<size_t>(Block::BytesFor(shape))));
  }
  // For rows of a larger block, which is freed right afterwards.
  std::shared_ptr<Block> MakeToReplace(const BlockShape& shape) const {
    return std::make_shared<Block>(shape, held, memory->AllocateToReplace(static_cast<size_t>(Block::BytesFor(shape))));
  }
  // A block of the column's rows: without a copy if they lie in this memory already, in the layout of a block.
  std::shared_ptr<Block> MakeOf(const BlockShape& shape, const Column& column, const BulkCopy& copy) const;
};

}  // namespace tdock::dock
