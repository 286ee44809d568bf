// The states of 1024 rows with neighbouring ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "dock/table/group.h"
#include "tdock/requests.h"

namespace tdock::dock {

// The location of a cell's bytes. Block 0 does not exist: the cell is empty.
struct CellRef {
  static constexpr uint32_t kPartial = uint32_t{1} << 31;  // of `row`: blocks have fewer rows

  uint32_t block = 0;
  uint32_t row = 0;

  bool there() const { return block != 0; }
  bool partial() const { return (row & kPartial) != 0; }
  // It is empty for all consumers but its writers.
  bool empty() const { return !there() || partial(); }
  // For the store, which does not distinguish partial cells.
  CellRef plain() const { return {block, row & ~kPartial}; }
};

// A row's state for one consumer, in a byte: from 1 to kMaxReads, it is waiting for that many columns.
using RowState = uint8_t;
inline constexpr RowState kReady = 0;
inline constexpr RowState kMaxReads = 250;
// Done, but can still be rolled back.
inline constexpr RowState kUncommitted = 252;
inline constexpr RowState kQuarantined = 253;
inline constexpr RowState kLeased = 254;
inline constexpr RowState kDone = 255;

constexpr bool IsWaiting(RowState state) { return state != kReady && state <= kMaxReads; }

constexpr DeliveryState DeliveryStateOf(RowState state) {
  if (state == kReady) return DeliveryState::kReady;
  if (state == kLeased) return DeliveryState::kLeased;
  if (state == kQuarantined) return DeliveryState::kQuarantined;
  return state == kDone || state == kUncommitted ? DeliveryState::kDone : DeliveryState::kWaiting;
}

struct Page {
  static constexpr uint64_t kRows = 1024;

  struct ConsumerStates {
    std::array<RowState, kRows> state;
    // For each leased row, the low 32 bits of its lease, which are unique among live leases. Unset for other rows.
    std::array<uint32_t, kRows> lease;
  };

  // The first id of this page, and which of its rows exist.
  RowId first = 0;
  int64_t live = 0;
  std::array<uint64_t, kRows / 64> present{};
  // Of these, the rows that are also done for consumers that register later.
  std::array<uint64_t, kRows / 64> dropped{};
  // By column; null until a cell of this page is put.
  absl::InlinedVector<std::unique_ptr<CellRef[]>, 16> cells;
  // By consumer; null for a dropped one.
  absl::InlinedVector<std::unique_ptr<ConsumerStates>, 8> consumers;
  // Null until a row of this page has a group; null for rows without one.
  std::unique_ptr<Group*[]> groups;

  bool Has(uint64_t slot) const { return present[slot / 64] >> (slot % 64) & 1; }
  bool IsDropped(uint64_t slot) const { return dropped[slot / 64] >> (slot % 64) & 1; }
  CellRef CellAt(uint64_t slot, uint32_t column) const {
    return column < cells.size() && cells[column] != nullptr ? cells[column][slot] : CellRef();
  }
  Group* GroupAt(uint64_t slot) const { return groups == nullptr ? nullptr : groups[slot]; }
};

// An existing row. Valid until rows are added or removed.
struct Place {
  Page* page;
  uint64_t slot;

  RowId row() const { return page->first + slot; }
  Group* group() const { return page->GroupAt(slot); }
  GroupId group_id() const { return group() == nullptr ? kNoGroup : group()->id; }
  CellRef cell(uint32_t column) const { return page->CellAt(slot, column); }
  RowState& state(uint32_t consumer) const { return page->consumers[consumer]->state[slot]; }
  uint32_t& lease(uint32_t consumer) const { return page->consumers[consumer]->lease[slot]; }
};

}  // namespace tdock::dock
