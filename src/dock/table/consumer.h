// A consumer of a table: its options, and the rows and groups by their state for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "dock/table/group.h"
#include "dock/table/id_set.h"
#include "dock/table/page.h"
#include "dock/table/takeable.h"
#include "tdock/dock.h"

namespace tdock::dock {

// The state of a unit (a row or a whole group) for a consumer that takes such units.
enum class UnitState : uint8_t {
  kAbsent,
  kComing,    // it may become takeable: it waits for columns or rows, or it is leased
  kTakeable,  // now
  kStuck,     // it cannot be taken as a whole any more, though not all its rows are done
  kFinished,  // all its rows are done
};

constexpr UnitState UnitStateOf(RowState state) {
  if (state == kReady) return UnitState::kTakeable;
  if (state == kQuarantined) return UnitState::kStuck;
  return state == kDone || state == kUncommitted ? UnitState::kFinished : UnitState::kComing;
}

// The states of its rows are in the pages; here they are counted. Not thread-safe.
class Consumer {
 public:
  // The columns are the table's. `group_slot` is the place of a consumer of groups in Group::counts.
  Consumer(ConsumerOptions options, std::vector<uint32_t> reads, std::vector<uint32_t> reads_optional,
           std::vector<uint32_t> writes, size_t group_slot, bool retained)
      : options_(std::move(options)),
        reads_(std::move(reads)),
        reads_optional_(std::move(reads_optional)),
        writes_(std::move(writes)),
        sorted_writes_(Sorted(writes_)),
        group_slot_(group_slot),
        retained_(retained),
        shares_(static_cast<size_t>(options_.ranks)) {}

  const ConsumerOptions& options() const { return options_; }
  const std::vector<uint32_t>& reads() const { return reads_; }
  const std::vector<uint32_t>& reads_optional() const { return reads_optional_; }
  const std::vector<uint32_t>& writes() const { return writes_; }
  bool Writes(uint32_t column) const {
    return std::binary_search(sorted_writes_.begin(), sorted_writes_.end(), column);
  }
  bool by_group() const { return options_.unit == Unit::kGroup; }
  // Rows must outlive it.
  bool retained() const { return retained_; }
  // The state of a row that has none of the columns yet. A consumer that reads nothing waits for the row to exist.
  RowState initial_state() const { return static_cast<RowState>(std::max<size_t>(reads_.size(), 1)); }

  // ---- The units it may take.

  // The units of one rank.
  struct Share {
    // The row ids, or the leaders of groups, that can be taken.
    Takeable takeable;
    // Units that are takeable or may become so; and units that are not finished.
    int64_t coming = 0;
    int64_t open = 0;
    uint64_t takes = 0;
  };
  const Share& share(int32_t rank) const { return shares_[static_cast<size_t>(rank)]; }
  const IdSet& stuck() const { return stuck_; }
  // Rows, whatever the unit.
  const IdSet& waiting() const { return waiting_; }
  const IdSet& quarantined() const { return quarantined_; }

  ConsumerStatus status() const {
    ConsumerStatus status = counts;
    status.waiting = waiting_.size();
    status.quarantined = quarantined_.size();
    return status;
  }
  size_t group_slot() const { return group_slot_; }

  // ---- Changes, which the table makes together with those of the states.

  // Rows from `first` on entered or left a state.
  void EnterState(RowState state, RowId first, int64_t count);
  void LeaveState(RowState state, RowId first, int64_t count);

  // The rows of [first, first + count), each of them a unit, change their state.
  void MoveUnits(RowId first, int64_t count, UnitState from, UnitState to, int32_t age = 0);
  // Around every change of a group or of its counts.
  void Leave(const Group& group) {
    MoveUnits(ShareOf(group.ordinal), group.leader, 1, UnitStateOf(group), UnitState::kAbsent, group.age);
  }
  void Enter(const Group& group) {
    MoveUnits(ShareOf(group.ordinal), group.leader, 1, UnitState::kAbsent, UnitStateOf(group), group.age);
  }
  void CountTake(int32_t rank) { ++shares_[static_cast<size_t>(rank)].takes; }
  // One for each rank.
  void RestoreTakes(const std::vector<uint64_t>& takes) {
    for (size_t rank = 0; rank < shares_.size(); ++rank) shares_[rank].takes = takes[rank];
  }
  void CountInGroup(Group& group, RowState state, int32_t count) const;
  int64_t DoneOf(const Group& group) const { return group.counts[group_slot_].done; }

  // Without the waiting and the quarantined rows, which are counted as sets.
  ConsumerStatus counts;
  absl::btree_set<LeaseId> leases;
  // The rows that a checkpointed consumer has done since its last commit: the step of each row, and the rows of each
  // step. The latter may include rows that are gone, or now belong to another step.
  absl::flat_hash_map<RowId, int64_t> uncommitted_steps;
  absl::btree_map<int64_t, std::vector<RowId>> uncommitted_rows;
  using RowsOfStep = decltype(uncommitted_rows)::value_type;
  // Of the rows whose lease expired, how often.
  absl::flat_hash_map<RowId, int32_t> redeliveries;

 private:
  static std::vector<uint32_t> Sorted(std::vector<uint32_t> columns) {
    std::sort(columns.begin(), columns.end());
    return columns;
  }
  UnitState UnitStateOf(const Group& group) const;
  template <bool kEnters>
  void ChangeState(RowState state, RowId first, int64_t count);
  Share& ShareOf(uint64_t ordinal) { return shares_[ordinal % shares_.size()]; }
  void MoveUnits(Share& share, RowId first, int64_t count, UnitState from, UnitState to, int32_t age);

  const ConsumerOptions options_;
  const std::vector<uint32_t> reads_;
  const std::vector<uint32_t> reads_optional_;
  const std::vector<uint32_t> writes_;
  const std::vector<uint32_t> sorted_writes_;
  const size_t group_slot_;
  const bool retained_;
  std::vector<Share> shares_;
  IdSet stuck_;
  IdSet waiting_;
  IdSet quarantined_;
};

}  // namespace tdock::dock
