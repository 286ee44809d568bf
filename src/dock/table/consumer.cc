#include "dock/table/consumer.h"

namespace tdock::dock {

void Consumer::CountState(RowState state, int64_t change) {
  if (state == kReady) counts.ready += change;
  if (state == kLeased) counts.leased += change;
  if (state == kDone || state == kUncommitted) counts.done += change;
  if (state == kUncommitted) counts.uncommitted += change;
}

void Consumer::EnterState(RowState state, RowId first, int64_t count) {
  CountState(state, count);
  if (IsWaiting(state)) waiting_.Insert(first, first + static_cast<RowId>(count));
  if (state == kQuarantined) quarantined_.Insert(first, first + static_cast<RowId>(count));
}

void Consumer::LeaveState(RowState state, RowId first, int64_t count) {
  CountState(state, -count);
  if (IsWaiting(state)) waiting_.Erase(first, first + static_cast<RowId>(count));
  if (state == kQuarantined) quarantined_.Erase(first, first + static_cast<RowId>(count));
}

void Consumer::CountInGroup(Group& group, RowState state, int32_t count) const {
  Group::Counts& of_group = group.counts[group_slot_];
  if (state == kReady) of_group.ready += count;
  if (state == kQuarantined) of_group.quarantined += count;
  if (state == kDone || state == kUncommitted) of_group.done += count;
}

void Consumer::MoveUnits(RowId first, int64_t count, UnitState from, UnitState to, int32_t age) {
  if (from == to) return;
  if (shares_.size() == 1) {
    MoveUnits(shares_[0], first, count, from, to, age);
    return;
  }
  for (RowId row = first; row < first + static_cast<RowId>(count); ++row)
    MoveUnits(ShareOf(row), row, 1, from, to, age);
}

void Consumer::MoveUnits(Share& share, RowId first, int64_t count, UnitState from, UnitState to, int32_t age) {
  if (from == to) return;
  const RowId end = first + static_cast<RowId>(count);
  const auto tally = [&](UnitState state, int64_t change) {
    if (state == UnitState::kComing || state == UnitState::kTakeable) share.coming += change;
    if (state != UnitState::kAbsent && state != UnitState::kFinished) share.open += change;
  };
  tally(from, -count);
  tally(to, count);
  const int64_t before = share.takeable.size();
  if (from == UnitState::kTakeable) share.takeable.Erase(first, end, age);
  if (to == UnitState::kTakeable) share.takeable.Insert(first, end, age);
  counts.takeable += share.takeable.size() - before;
  if (from == UnitState::kStuck) stuck_.Erase(first, end);
  if (to == UnitState::kStuck) stuck_.Insert(first, end);
}

UnitState Consumer::UnitStateOf(const Group& group) const {
  const Group::Counts& of_group = group.counts[group_slot_];
  if (of_group.done == group.rows_here()) return group.rows.empty() ? UnitState::kAbsent : UnitState::kFinished;
  if (of_group.done > 0 || of_group.quarantined > 0 || group.broken()) return UnitState::kStuck;
  return of_group.ready == group.size ? UnitState::kTakeable : UnitState::kComing;
}

}  // namespace tdock::dock
