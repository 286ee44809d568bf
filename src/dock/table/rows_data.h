// What rows consist of, for those who hand them out or send them on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tdock/buffer.h"
#include "tdock/rows.h"

namespace tdock {

// Adjacent cells as memory that its owner may write to: nobody else sees what is written. What is not written is read
// where the rows have it, which must live as long. A buffer without memory where this is not possible.
using LookPrivately = std::function<Buffer(std::span<const std::byte>)>;

struct Rows::Data {
  std::vector<RowId> ids = {};
  std::vector<GroupId> groups = {};
  // How often each row was handed to this consumer before and came back because a lease expired. Empty: never.
  std::vector<int32_t> redeliveries = {};
  // Of each row. Empty where no row of the partition has any.
  std::vector<std::string> keys = {};
  std::vector<std::shared_ptr<const Tags>> tags = {};
  std::shared_ptr<const std::vector<ColumnSpec>> columns = {};
  std::vector<Cell> cells = {};  // column after column
  // Of each row. Empty where all are 0.
  std::vector<int32_t> ages = {};
  std::vector<uint32_t> epochs = {};
  // Of those cells that were made in several pieces; by the position in `cells`.
  std::map<size_t, std::vector<Piece>> pieces = {};
  std::vector<std::shared_ptr<const void>> pins = {};
  // Where copies of the rows go; null: the heap.
  std::shared_ptr<Memory> memory = {};
  // Null: not possible for any.
  LookPrivately look_privately = {};

  Rows ToRows() && { return Rows(std::move(*this)); }
  static const Data& Of(const Rows& rows) { return *rows.data_; }
};

}  // namespace tdock
