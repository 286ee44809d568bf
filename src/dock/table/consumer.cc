#include "dock/table/consumer.h"

namespace tdock::dock {

// Entering adds rows, leaving takes them away.
template <bool kEnters>
void Consumer::ChangeState(RowState state, RowId first, int64_t count) {
  const int64_t change = kEnters ? count : -count;
  const auto change_set = [&](IdSet& ids) {
    const RowId end = first + static_cast<RowId>(count);
    kEnters ? ids.Insert(first, end) : ids.Erase(first, end);
  };
  switch (state) {
    case kReady:
      counts.ready += change;
      break;
    case kLeased:
      counts.leased += change;
      break;
    case kUncommitted:
      counts.uncommitted += change;
      [[fallthrough]];
    case kDone:
      counts.done += change;
      break;
    case kQuarantined:
      change_set(quarantined_);
      break;
    default:
      change_set(waiting_);
  }
}

void Consumer::EnterState(RowState state, RowId first, int64_t count) { ChangeState<true>(state, first, count); }

void Consumer::LeaveState(RowState state, RowId first, int64_t count) { ChangeState<false>(state, first, count); }

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
