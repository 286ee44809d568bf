#include "dock/consumer.h"

namespace tdock {

void Consumer::EnterState(RowState state, RowId first, int64_t count) {
  if (state == kReady) ready_ += count;
  if (state == kLeased) leased_ += count;
  if (state == kDone || state == kUncommitted) done_ += count;
  if (state == kUncommitted) uncommitted_ += count;
  if (state == kQuarantined) quarantined_.Insert(first, first + static_cast<RowId>(count));
}

void Consumer::LeaveState(RowState state, RowId first, int64_t count) {
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

void Consumer::Restand(RowId first, int64_t count, Standing from, Standing to) {
  if (from == to) return;
  const RowId end = first + static_cast<RowId>(count);
  const auto tally = [&](Standing standing, int64_t change) {
    if (standing == Standing::kComing || standing == Standing::kTakeable) coming_ += change;
    if (standing != Standing::kAbsent && standing != Standing::kFinished) open_ += change;
  };
  tally(from, -count);
  tally(to, count);
  if (from == Standing::kTakeable) takeable_.Erase(first, end);
  if (to == Standing::kTakeable) takeable_.Insert(first, end);
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
