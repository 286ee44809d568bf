// Changes of existing rows: taken, given back, done, removed.
#include <algorithm>
#include <utility>

#include "dock/table/table.h"

namespace tdock::dock {

// ---- Leases.

void Table::On(const RowsTaken& event) {
  Consumer& consumer = *state_.consumers[event.consumer];
  consumer.CountTake(event.rank);
  const std::vector<Place> places = state_.Locate(event.rows);
  // Randomly drawn rows are scattered: prefetching what each needs before using any lets their cache misses overlap.
  for (const Place& place : places) {
    __builtin_prefetch(&place.state(event.consumer));
    __builtin_prefetch(&place.lease(event.consumer));
  }
  for (const Place& place : places) {
    Move(event.consumer, place, kLeased);
    place.lease(event.consumer) = Lease::KeyOf(event.lease);
  }
  if (event.lease == kNoLease) {
    Finish(event.consumer, event.rows, kDone);
    return;
  }
  state_.leases.Add({.id = event.lease,
                     .consumer = event.consumer,
                     .at = event.at,
                     .expires = event.expires,
                     .rows = {event.rows.begin(), event.rows.end()},
                     .held = static_cast<int64_t>(event.rows.size())});
  consumer.leases.insert(event.lease);
}

void Table::LeaveLease(uint32_t consumer, const Place& place) {
  Lease& lease = state_.leases.ByKey(place.lease(consumer));
  if (--lease.held == 0) EndLease(lease);
}

void Table::EndLease(const Lease& lease) {
  state_.consumers[lease.consumer]->leases.erase(lease.id);
  state_.leases.Remove(lease);
}

void Table::On(const RowsCompleted& event) {
  const uint32_t index = state_.leases.Find(event.lease)->consumer;
  Consumer& consumer = *state_.consumers[index];
  for (RowId row : event.rows) LeaveLease(index, state_.pages.At(row));
  if (!consumer.options().checkpointed) {
    Finish(index, event.rows, kDone);
    return;
  }
  std::vector<RowId>& step = consumer.uncommitted_rows[event.step];
  for (RowId row : event.rows) {
    step.push_back(row);
    consumer.uncommitted_steps[row] = event.step;
  }
  Finish(index, event.rows, kUncommitted);
}

void Table::Finish(uint32_t index, std::span<const RowId> rows, RowState state) {
  Consumer& consumer = *state_.consumers[index];
  for (RowId row : rows) {
    const Place place = state_.pages.At(row);
    Move(index, place, state);
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(row);
    ++consumer.counts.completed;
    if (consumer.retained() && MayRelease(place)) Remove(place, /*cleared=*/false);
  }
}

void Table::On(const RowsReturned& event) {
  const uint32_t consumer = state_.leases.Find(event.lease)->consumer;
  for (RowId row : event.rows) {
    const Place place = state_.pages.At(row);
    LeaveLease(consumer, place);
    Move(consumer, place, kReady);
  }
}

void Table::On(const LeaseExpired& event) {
  const Lease& lease = *state_.leases.Find(event.lease);
  Consumer& consumer = *state_.consumers[lease.consumer];
  for (RowId row : lease.rows) {
    const std::optional<Place> place = state_.pages.Find(row);
    if (!place.has_value() || !state_.Holds(lease, *place)) continue;
    const int32_t deliveries = ++consumer.redeliveries[row];
    Move(lease.consumer, *place, deliveries < consumer.options().max_deliveries ? kReady : kQuarantined);
    ++consumer.counts.expired;
  }
  EndLease(lease);
}

void Table::On(const LeaseRenewed& event) { state_.leases.Renew(event.lease, event.expires); }

void Table::On(const RowsRequeued& event) {
  for (RowId row : event.rows) {
    state_.consumers[event.consumer]->redeliveries.erase(row);
    Move(event.consumer, state_.pages.At(row), kReady);
  }
}

// ---- Steps.

void Table::On(const StepCommitted& event) {
  Consumer& consumer = *state_.consumers[event.consumer];
  consumer.counts.committed_step = std::max(consumer.counts.committed_step, event.step);
  auto& steps = consumer.uncommitted_rows;
  for (auto it = steps.begin(); it != steps.end() && it->first <= event.step; it = steps.erase(it)) {
    ForEachUncommitted(event.consumer, *it, [&](const Place& place) {
      Move(event.consumer, place, kDone);
      if (consumer.retained() && MayRelease(place)) Remove(place, /*cleared=*/false);
    });
  }
}

void Table::On(const StepsRolledBack& event) {
  Consumer& consumer = *state_.consumers[event.consumer];
  const std::vector<LeaseId> revoked(consumer.leases.begin(), consumer.leases.end());
  for (LeaseId lease : revoked) {
    const std::vector<RowId> rows = state_.HeldRows(*state_.leases.Find(lease));
    On(RowsReturned{lease, rows});
  }
  auto& steps = consumer.uncommitted_rows;
  for (auto it = steps.upper_bound(event.to_step); it != steps.end(); it = steps.erase(it)) {
    ForEachUncommitted(event.consumer, *it, [&](const Place& place) { Move(event.consumer, place, kReady); });
  }
}

// Of these rows, some may have been cleared, dropped or sent back since.
void Table::ForEachUncommitted(uint32_t consumer, const Consumer::RowsOfStep& step,
                               absl::FunctionRef<void(const Place&)> visit) {
  const auto& steps = state_.consumers[consumer]->uncommitted_steps;
  for (RowId row : step.second) {
    if (const auto it = steps.find(row); it != steps.end() && it->second == step.first) visit(state_.pages.At(row));
  }
}

// ---- Versions.

void Table::On(const WeightsPublished& event) { state_.weights_version = event.version; }

void Table::On(const RowsSentBack& event) {
  for (RowId row : event.rows) {
    const Place place = state_.pages.At(row);
    for (uint32_t column : event.columns) {
      EmptyCell(place, column, /*of_removed_row=*/false);
      state_.histories.ForgetCell(row, column);
    }
    for (uint32_t consumer : event.consumers) Reset(consumer, place, event.columns);
    Raise(place, /*sent_back=*/true);
  }
  if (event.stale_for) state_.consumers[*event.stale_for]->counts.sent_back += static_cast<int64_t>(event.rows.size());
}

void Table::EmptyCell(const Place& place, uint32_t column, bool of_removed_row) {
  const CellRef cell = place.cell(column);
  if (!cell.there()) return;
  (of_removed_row ? removed_cells_ : replaced_cells_).push_back(cell.plain());
  place.page->cells[column][place.slot] = CellRef();
  if (!cell.partial()) --state_.schema[column].ready_cells;
}

// As if it had never been handed out. What a checkpointed consumer has committed is part of saved weights and stays
// done, unless it must write some of the columns again.
void Table::Reset(uint32_t index, const Place& place, std::span<const uint32_t> emptied) {
  Consumer& consumer = *state_.consumers[index];
  const RowState state = place.state(index);
  const bool writes =
      std::any_of(emptied.begin(), emptied.end(), [&](uint32_t column) { return consumer.Writes(column); });
  if (consumer.options().checkpointed && state == kDone && !writes) return;
  if (state == kLeased) LeaveLease(index, place);
  consumer.counts.reset += state != kReady && !IsWaiting(state);
  consumer.redeliveries.erase(place.row());
  const auto missing = std::count_if(consumer.reads().begin(), consumer.reads().end(),
                                     [&](uint32_t column) { return place.cell(column).empty(); });
  Move(index, place, static_cast<RowState>(missing));
}

// ---- The end of rows.

void Table::On(const RowsDropped& event) {
  if (event.stale_for)
    state_.consumers[*event.stale_for]->counts.stale_dropped += static_cast<int64_t>(event.rows.size());
  for (RowId row : event.rows) {
    const Place place = state_.pages.At(row);
    if (!state_.retainers.empty()) {
      Remove(place, /*cleared=*/false);
      continue;
    }
    place.page->dropped[place.slot / 64] |= uint64_t{1} << place.slot % 64;
    for (uint32_t index : state_.registered) {
      if (place.state(index) == kLeased) LeaveLease(index, place);
      state_.consumers[index]->redeliveries.erase(row);
      Move(index, place, kDone);
    }
  }
}

void Table::On(const RowsCleared& event) {
  for (RowId row : event.rows) Remove(state_.pages.At(row), /*cleared=*/true);
  for (GroupId id : event.groups) {
    if (const Group* const group = state_.groups.Find(id); group != nullptr) state_.groups.Forget(*group);
  }
}

void Table::On(const SealChanged& event) { state_.sealed = event.sealed; }

bool Table::MayRelease(const Place& place) const {
  return std::all_of(state_.retainers.begin(), state_.retainers.end(), [&](const TableState::Retainer& retainer) {
    return retainer.consumer.has_value() && place.state(*retainer.consumer) == kDone;
  });
}

void Table::Remove(const Place& place, bool cleared) {
  Page& page = *place.page;
  Group* const group = place.group();
  if (group != nullptr) LeaveConsumers(*group);
  for (uint32_t index : state_.registered) {
    Consumer& consumer = *state_.consumers[index];
    const RowState state = place.state(index);
    if (state == kLeased) LeaveLease(index, place);
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(place.row());
    consumer.LeaveState(state, place.row(), 1);
    if (state == kUncommitted) consumer.uncommitted_steps.erase(place.row());
    if (consumer.by_group() && group != nullptr) {
      consumer.CountInGroup(*group, state, -1);
    } else {
      consumer.MoveUnits(place.row(), 1, UnitStateOf(state), UnitState::kAbsent, state_.AgeOf(place));
    }
    place.state(index) = consumer.initial_state();
  }
  for (uint32_t column = 0; column < page.cells.size(); ++column) EmptyCell(place, column, /*of_removed_row=*/true);
  state_.histories.Remove(place.row());
  if (group != nullptr) {
    page.groups[place.slot] = nullptr;
    // If no new rows can come, none replaces one that was cleared.
    if (!state_.groups.RemoveRow(*group, place.row(), cleared && !state_.sealed)) EnterConsumers(*group);
  }
  if (!state_.labels.empty()) state_.labels.Remove(place.row());
  state_.pages.Remove(place);
}

}  // namespace tdock::dock
