#include "dock/table/consumer.h"

namespace tdock {

void Consumer::EnterState(RowState state, RowId first, int64_t count) {
  if (IsWaiting(state)) waiting_.Insert(first, first + static_cast<RowId>(count));
  if (state == kReady) ready_ += count;
  if (state == kLeased) leased_ += count;
  if (state == kDone || state == kUncommitted) done_ += count;
  if (state == kUncommitted) uncommitted_ += count;
  if (state == kQuarantined) quarantined_.Insert(first, first + static_cast<RowId>(count));
}

void Consumer::LeaveState(RowState state, RowId first, int64_t count) {
  if (IsWaiting(state)) waiting_.Erase(first, first + static_cast<RowId>(count));
  if (state == kReady) ready_ -= count;
  if (state == kLeased) leased_ -= count;
  if (state == kDone || state == kUncommitted) done_ -= count;
  if (state == kUncommitted) uncommitted_ -= count;
  if (state == kQuarantined) quarantined_.Erase(first, first + static_cast<RowId>(count));
}

void Consumer::CountInGroup(Group& group, RowState state, int32_t count) const {
  Group::Counts& counts = group.counts[group_slot_];
  if (state == kReady) counts.ready += count;
  if (state == kQuarantined) counts.quarantined += count;
  if (state == kDone || state == kUncommitted) counts.done += count;
}

void Consumer::Restand(RowId first, int64_t count, Standing from, Standing to, int32_t age) {
  if (from == to) return;
  if (shares_.size() == 1) {
    Restand(shares_[0], first, count, from, to, age);
    return;
  }
  for (RowId row = first; row < first + static_cast<RowId>(count); ++row) Restand(ShareOf(row), row, 1, from, to, age);
}

void Consumer::Restand(Share& share, RowId first, int64_t count, Standing from, Standing to, int32_t age) {
  if (from == to) return;
  const RowId end = first + static_cast<RowId>(count);
  const auto tally = [&](Standing standing, int64_t change) {
    if (standing == Standing::kComing || standing == Standing::kTakeable) share.coming += change;
    if (standing != Standing::kAbsent && standing != Standing::kFinished) share.open += change;
  };
  tally(from, -count);
  tally(to, count);
  const int64_t before = share.takeable.size();
  if (from == Standing::kTakeable) share.takeable.Erase(first, end, age);
  if (to == Standing::kTakeable) share.takeable.Insert(first, end, age);
  takeable_ += share.takeable.size() - before;
  if (from == Standing::kStuck) stuck_.Erase(first, end);
  if (to == Standing::kStuck) stuck_.Insert(first, end);
}

Standing Consumer::StandingOf(const Group& group) const {
  const Group::Counts& counts = group.counts[group_slot_];
  if (counts.done == group.rows_here()) return group.rows.empty() ? Standing::kAbsent : Standing::kFinished;
  if (counts.done > 0 || counts.quarantined > 0 || group.broken()) return Standing::kStuck;
  return counts.ready == group.size ? Standing::kTakeable : Standing::kComing;
}

}  // namespace tdock
