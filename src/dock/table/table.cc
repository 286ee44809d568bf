#include "dock/table/table.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/status.h"

namespace tdock::dock {
namespace {

void AddConsumer(Page& page, uint32_t index, const Consumer& consumer) {
  if (page.consumers.size() <= index) page.consumers.resize(index + 1);
  page.consumers[index] = std::make_unique_for_overwrite<Page::ConsumerStates>();
  page.consumers[index]->state.fill(consumer.initial_state());
}

// Takes the lowest free number.
uint32_t TakeNumber(std::vector<bool>& taken) {
  const auto free = std::find(taken.begin(), taken.end(), false);
  const auto number = static_cast<uint32_t>(free - taken.begin());
  if (free == taken.end()) taken.push_back(false);
  taken[number] = true;
  return number;
}

}  // namespace

Table::Table(PartitionOptions options, LeaseId last_lease)
    : state_{.options = std::move(options), .leases = Leases(last_lease)} {
  for (const std::string& name : state_.options.retain_for) state_.retainers.push_back({name, std::nullopt});
  for (const ColumnSpec& spec : state_.options.columns) On(ColumnAdded{spec});
}

void Table::Apply(const Event& event) {
  ++state_.changes;
  std::visit([this](const auto& e) { On(e); }, event);
}

// ---- Columns and consumers.

void Table::On(const ColumnAdded& event) {
  Schema::Column& column = state_.schema[state_.schema.Name(event.spec.name)];
  column.spec.type = event.spec.type;
  column.typed = true;
}

void Table::On(const ConsumerRegistered& event) {
  const auto free = std::find(state_.consumers.begin(), state_.consumers.end(), nullptr);
  const uint32_t index = static_cast<uint32_t>(free - state_.consumers.begin());
  if (free == state_.consumers.end()) state_.consumers.emplace_back();
  const ConsumerOptions& options = event.options;
  std::vector<uint32_t> reads, optional, writes;
  for (const std::string& name : options.reads_optional) {
    optional.push_back(state_.schema.Name(name));
    state_.schema[optional.back()].optional_readers.push_back(index);
  }
  for (const std::string& name : options.reads) {
    reads.push_back(state_.schema.Name(name));
    state_.schema[reads.back()].readers.push_back(index);
  }
  for (const std::string& name : options.writes) {
    writes.push_back(state_.schema.Name(name));
    state_.schema[writes.back()].writers.push_back(index);
  }
  bool retained = false;
  for (TableState::Retainer& retainer : state_.retainers) {
    if (retainer.name != options.name) continue;
    retainer.consumer = index;
    retained = true;
  }
  const size_t group_slot = options.unit == Unit::kGroup ? TakeNumber(state_.group_slots) : 0;
  state_.consumer_by_name.emplace(options.name, index);
  state_.registered.push_back(index);
  state_.consumers[index] = std::make_unique<Consumer>(options, std::move(reads), std::move(optional),
                                                       std::move(writes), group_slot, retained);
  hits_.resize(state_.consumers.size());
  AddExistingRows(index);
}

void Table::On(const ConsumerDropped& event) {
  std::erase_if(state_.retainers, [&](const TableState::Retainer& retainer) { return retainer.name == event.name; });
  if (const auto it = state_.consumer_by_name.find(event.name); it != state_.consumer_by_name.end()) Forget(it->second);
  if (state_.retainers.empty()) return;
  std::vector<RowId> released;
  state_.pages.ForEachRow(0, [&](const Place& place) {
    if (MayRelease(place)) released.push_back(place.row());
    return true;
  });
  for (RowId row : released) Remove(state_.pages.At(row), /*cleared=*/false);
}

void Table::Forget(uint32_t index) {
  const Consumer& consumer = *state_.consumers[index];
  for (LeaseId lease : consumer.leases) state_.leases.Remove(state_.leases.ByKey(Lease::KeyOf(lease)));
  for (uint32_t column : consumer.reads()) std::erase(state_.schema[column].readers, index);
  for (uint32_t column : consumer.reads_optional()) std::erase(state_.schema[column].optional_readers, index);
  for (uint32_t column : consumer.writes()) std::erase(state_.schema[column].writers, index);
  state_.pages.ForEachPage([&](Page& page) { page.consumers[index].reset(); });
  if (consumer.by_group()) {
    state_.groups.ForEach([&](Group& group) { group.counts[consumer.group_slot()] = {}; });
    state_.group_slots[consumer.group_slot()] = false;
  }
  std::erase(state_.registered, index);
  state_.consumer_by_name.erase(consumer.options().name);
  state_.consumers[index].reset();
}

void Table::AddExistingRows(uint32_t index) {
  Consumer& consumer = *state_.consumers[index];
  state_.pages.ForEachPage([&](Page& page) { AddConsumer(page, index, consumer); });
  if (consumer.by_group()) {
    state_.groups.ForEach([&](Group& group) {
      group.counts.resize(state_.group_slots.size());
      consumer.Enter(group);
    });
  }
  state_.pages.ForEachRow(0, [&](const Place& place) {
    if (!consumer.by_group() || place.group() == nullptr) {
      consumer.MoveUnits(place.row(), 1, UnitState::kAbsent, UnitState::kComing);
    }
    consumer.EnterState(consumer.initial_state(), place.row(), 1);
    if (place.page->IsDropped(place.slot)) {
      Move(index, place, kDone);
      return true;
    }
    const auto missing = std::count_if(consumer.reads().begin(), consumer.reads().end(),
                                       [&](uint32_t column) { return place.cell(column).empty(); });
    Move(index, place, static_cast<RowState>(missing));
    return true;
  });
}

// ---- Rows and cells.

CellRef* Table::CellsFor(Page& page, uint32_t column) {
  if (page.cells.size() <= column) page.cells.resize(state_.schema.size());
  if (page.cells[column] == nullptr) page.cells[column] = std::make_unique<CellRef[]>(Page::kRows);
  return page.cells[column].get();
}

void Table::On(const RowsPut& event) {
  state_.newest_version = std::max(state_.newest_version, event.weights_version);
  if (event.rows.empty()) {
    PutNewRows(event);
  } else {
    PutInRows(event);
    LabelRows(event, event.rows);
    if (event.returns != kNoLease) {
      state_.consumers[state_.leases.Find(event.returns)->consumer]->counts.unfinished +=
          static_cast<int64_t>(event.rows.size());
      for (RowId row : event.rows) Raise(state_.pages.At(row), /*sent_back=*/false);
      On(RowsReturned{event.returns, event.rows});
    }
    if (event.completes != kNoLease) On(RowsCompleted{event.completes, event.rows, event.step});
  }
}

void Table::PutNewRows(const RowsPut& event) {
  for (uint32_t column : event.columns) {
    state_.schema[column].ready_cells += event.new_rows;
    for (uint32_t reader : state_.schema[column].readers) ++hits_[reader];
  }
  if (!event.groups.empty()) state_.largest_group = std::max(state_.largest_group, event.group_size);
  int64_t done = 0;
  state_.pages.Append(
      event.new_rows,
      [&](Page& page) {
        page.consumers.reserve(state_.consumers.size());
        for (uint32_t index : state_.registered) AddConsumer(page, index, *state_.consumers[index]);
      },
      [&](Page& page, uint64_t slot, int64_t count) {
        if (!event.groups.empty()) {
          JoinGroups(page, slot, event.groups.subspan(static_cast<size_t>(done), static_cast<size_t>(count)),
                     event.group_size);
        }
        PutSegment(event, page, slot, done, count);
        done += count;
      });
  std::fill(hits_.begin(), hits_.end(), uint8_t{0});
  if (event.keys.empty() && event.tags.empty()) return;
  std::vector<RowId> rows(static_cast<size_t>(event.new_rows));
  std::iota(rows.begin(), rows.end(), state_.pages.next_row() - rows.size());
  LabelRows(event, rows);
}

void Table::LabelRows(const RowsPut& event, std::span<const RowId> rows) {
  for (size_t i = 0; i < event.keys.size(); ++i) {
    if (!event.keys[i].empty()) state_.labels.SetKey(rows[i], event.keys[i]);
  }
  for (size_t i = 0; !event.tags.empty() && i < rows.size(); ++i) {
    state_.labels.AddTags(rows[i], event.tags[event.tags.size() == 1 ? 0 : i]);
  }
}

// The `count` new rows of the put from its row `first` on, which lie in one page from `slot` on.
void Table::PutSegment(const RowsPut& event, Page& page, uint64_t slot, int64_t first, int64_t count) {
  for (size_t i = 0; i < event.columns.size(); ++i) {
    CellRef* const cells = CellsFor(page, event.columns[i]) + slot;
    const CellRef from = event.first_cells[i];
    for (int64_t k = 0; k < count; ++k) cells[k] = {from.block, from.row + static_cast<uint32_t>(first + k)};
  }
  for (uint32_t index : state_.registered) {
    Consumer& consumer = *state_.consumers[index];
    const size_t reads = consumer.reads().size();
    const bool ready = hits_[index] == reads;
    RowState* const states = page.consumers[index]->state.data() + slot;
    if (!ready && hits_[index] > 0) {
      std::memset(states, static_cast<int>(reads - hits_[index]), static_cast<size_t>(count));
    }
    if (consumer.by_group() && !event.groups.empty()) {
      consumer.EnterState(consumer.initial_state(), page.first + slot, count);
      for (int64_t k = 0; ready && k < count; ++k) Move(index, Place{&page, slot + static_cast<uint64_t>(k)}, kReady);
      continue;
    }
    if (ready) std::memset(states, kReady, static_cast<size_t>(count));
    consumer.EnterState(ready ? kReady : consumer.initial_state(), page.first + slot, count);
    const UnitState state = ready ? UnitState::kTakeable : UnitState::kComing;
    if (event.groups.empty() || !state_.any_group_aged) {
      consumer.MoveUnits(page.first + slot, count, UnitState::kAbsent, state);
      continue;
    }
    // They may join groups that are older than they are.
    for (uint64_t k = slot; k < slot + static_cast<uint64_t>(count); ++k) {
      const Place place{&page, k};
      consumer.MoveUnits(place.row(), 1, UnitState::kAbsent, state, state_.AgeOf(place));
    }
  }
}

void Table::JoinGroups(Page& page, uint64_t slot, std::span<const GroupId> ids, int64_t group_size) {
  if (page.groups == nullptr) page.groups = std::make_unique<Group*[]>(Page::kRows);
  for (size_t i = 0; i < ids.size();) {
    const RowId row = page.first + slot + i;
    Group& group = state_.groups.Open(ids[i], group_size, row, state_.group_slots.size());
    LeaveConsumers(group);
    for (const GroupId id = ids[i]; i < ids.size() && ids[i] == id; ++i) {
      state_.groups.AddRow(group, page.first + slot + i);
      page.groups[slot + i] = &group;
    }
    EnterConsumers(group);
  }
}

void Table::LeaveConsumers(const Group& group) {
  for (uint32_t index : state_.registered) {
    if (state_.consumers[index]->by_group()) state_.consumers[index]->Leave(group);
  }
}

void Table::EnterConsumers(const Group& group) {
  for (uint32_t index : state_.registered) {
    if (state_.consumers[index]->by_group()) state_.consumers[index]->Enter(group);
  }
}

void Table::PutInRows(const RowsPut& event) {
  const std::vector<Place> places = state_.Locate(event.rows);
  for (size_t i = 0; i < event.columns.size(); ++i) {
    Schema::Column& column = state_.schema[event.columns[i]];
    CellRef from = event.first_cells[i];
    if (event.partial || !state_.histories.empty()) NotePieces(event, places, i);
    for (const Place& place : places) {
      CellRef& cell = CellsFor(*place.page, event.columns[i])[place.slot];
      const bool was_empty = cell.empty();
      if (cell.there()) replaced_cells_.push_back(cell.plain());
      cell = event.partial ? CellRef{from.block, from.row | CellRef::kPartial} : from;
      ++from.row;
      if (!was_empty || event.partial) continue;
      ++column.ready_cells;
      for (uint32_t reader : column.readers) {
        RowState& state = place.state(reader);
        if (state == 1) {
          Move(reader, place, kReady);
        } else if (IsWaiting(state)) {
          --state;  // it waited for this column among others
        }
      }
    }
  }
}

// Before the cells are replaced.
void Table::NotePieces(const RowsPut& event, std::span<const Place> places, size_t i) {
  const uint32_t column = event.columns[i];
  const bool is_list = state_.schema[column].spec.type.kind != ColumnKind::kDense;
  for (size_t k = 0; k < places.size(); ++k) {
    const RowId row = places[k].row();
    const bool goes_on = places[k].cell(column).partial() && !event.anew;
    if (!goes_on) state_.histories.ForgetCell(row, column);
    if (!goes_on && !event.partial) continue;
    state_.histories.AddPiece(row, column, event.lengths[i * places.size() + k], event.weights_version, is_list);
    if (!event.partial) state_.histories.Complete(row, column, event.weights_version);
  }
}

void Table::Raise(const Place& place, bool sent_back) {
  Group* const group = place.group();
  const int32_t before = state_.AgeOf(place);
  const int32_t own = state_.histories.Raise(place.row(), sent_back);
  const int32_t after = group == nullptr ? own : std::max(own, group->age);
  if (after == before) return;
  const RowId row = place.row();
  const std::span<const RowId> rows = group == nullptr ? std::span(&row, 1) : std::span<const RowId>(group->rows);
  if (group != nullptr) LeaveConsumers(*group);
  for (uint32_t index : state_.registered) {
    Consumer& consumer = *state_.consumers[index];
    if (consumer.by_group() && group != nullptr) continue;
    for (RowId each : rows) {
      const UnitState state = UnitStateOf(state_.pages.At(each).state(index));
      consumer.MoveUnits(each, 1, state, UnitState::kAbsent, before);
      consumer.MoveUnits(each, 1, UnitState::kAbsent, state, after);
    }
  }
  if (group == nullptr) return;
  group->age = after;
  state_.any_group_aged = true;
  EnterConsumers(*group);
}

void Table::Move(uint32_t index, const Place& place, RowState to) {
  Consumer& consumer = *state_.consumers[index];
  const RowState from = std::exchange(place.state(index), to);
  if (from == to) return;
  if (from == kUncommitted) consumer.uncommitted_steps.erase(place.row());
  consumer.LeaveState(from, place.row(), 1);
  consumer.EnterState(to, place.row(), 1);
  Group* const group = consumer.by_group() ? place.group() : nullptr;
  if (group == nullptr) {
    consumer.MoveUnits(place.row(), 1, UnitStateOf(from), UnitStateOf(to), state_.AgeOf(place));
    return;
  }
  consumer.Leave(*group);
  consumer.CountInGroup(*group, from, -1);
  consumer.CountInGroup(*group, to, 1);
  consumer.Enter(*group);
}

}  // namespace tdock::dock
