#include "dock/table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "base/status.h"

namespace tdock {
namespace {

// The state of a row that has none of the columns yet. A consumer that reads nothing waits for the row to exist.
RowState InitialState(size_t reads) { return static_cast<RowState>(std::max<size_t>(reads, 1)); }

void AddConsumer(Page& page, size_t reads) {
  page.consumers.push_back(std::make_unique_for_overwrite<Page::ConsumerStates>());
  page.consumers.back()->state.fill(InitialState(reads));
}

// Calls `visit(slot)` for each row that is there.
template <class Visit>
void ForEachRow(const Page& page, Visit visit) {
  for (size_t word = 0; word < page.present.size(); ++word) {
    for (uint64_t left = page.present[word]; left != 0; left &= left - 1) {
      visit(word * 64 + static_cast<uint64_t>(std::countr_zero(left)));
    }
  }
}

}  // namespace

Table::Table(PartitionOptions options) : options_(std::move(options)), retainers_(options_.retain_for.size()) {
  for (const ColumnSpec& spec : options_.columns) On(ColumnAdded{&spec});
}

void Table::Apply(const Event& event) {
  ++changes_;
  std::visit([this](const auto& e) { On(e); }, event);
}

Table::Place Table::At(RowId row) const {
  const std::optional<Place> place = Find(row);
  TDOCK_CHECK(place.has_value(), "an event names a row that is not there");
  return *place;
}

std::vector<Table::Place> Table::Locate(std::span<const RowId> rows) const {
  std::vector<Place> places;
  places.reserve(rows.size());
  Page* page = nullptr;
  for (RowId row : rows) {
    if (page == nullptr || row - page->first >= Page::kRows) {
      const auto it = pages_.find(row / Page::kRows);
      TDOCK_CHECK(it != pages_.end(), "a row that is not there");
      page = it->second.get();
    }
    places.push_back({page, row - page->first});
  }
  return places;
}

// ---- Columns and consumers.

uint32_t Table::ColumnFor(const std::string& name) {
  const auto [it, added] = column_by_name_.try_emplace(name, static_cast<uint32_t>(columns_.size()));
  if (added) columns_.emplace_back().spec.name = name;
  return it->second;
}

void Table::On(const ColumnAdded& event) {
  Column& column = columns_[ColumnFor(event.spec->name)];
  column.spec.type = event.spec->type;
  column.typed = true;
}

void Table::On(const ConsumerRegistered& event) {
  const uint32_t index = static_cast<uint32_t>(consumers_.size());
  auto consumer = std::make_unique<Consumer>();
  consumer->options = *event.options;
  for (const std::string& name : event.options->reads) {
    consumer->reads.push_back(ColumnFor(name));
    columns_[consumer->reads.back()].readers.push_back(index);
  }
  for (const std::string& name : event.options->writes) {
    consumer->writes.push_back(ColumnFor(name));
    columns_[consumer->writes.back()].writers.push_back(index);
  }
  for (size_t i = 0; i < retainers_.size(); ++i) {
    if (options_.retain_for[i] != event.options->name) continue;
    retainers_[i] = index;
    consumer->retained = true;
  }
  if (consumer->by_group()) {
    consumer->group_slot = group_consumers_++;
    for (auto& [id, group] : groups_) {
      group->counts.resize(group_consumers_);
      CountDead(*consumer, *group, /*after=*/true);
    }
  }
  consumer_by_name_.emplace(event.options->name, index);
  consumers_.push_back(std::move(consumer));
  hits_.resize(consumers_.size());

  const Consumer& added = *consumers_.back();
  for (auto& [number, page] : pages_) {
    AddConsumer(*page, added.reads.size());
    ForEachRow(*page, [&, p = page.get()](uint64_t slot) {
      const auto missing = std::count_if(added.reads.begin(), added.reads.end(),
                                         [&](uint32_t column) { return p->CellAt(slot, column).empty(); });
      Move(index, Place{p, slot}, static_cast<RowState>(missing));
    });
  }
}

// ---- Rows and cells.

Page& Table::PageFor(RowId row) {
  auto& page = pages_[row / Page::kRows];
  if (page == nullptr) {
    page = std::make_unique<Page>();
    page->first = row - row % Page::kRows;
    page->consumers.reserve(consumers_.size());
    for (const auto& consumer : consumers_) AddConsumer(*page, consumer->reads.size());
    page_order_.insert(page_order_.end(), row / Page::kRows);
  }
  return *page;
}

CellRef* Table::CellsFor(Page& page, uint32_t column) {
  if (page.cells.size() <= column) page.cells.resize(columns_.size());
  if (page.cells[column] == nullptr) page.cells[column] = std::make_unique<CellRef[]>(Page::kRows);
  return page.cells[column].get();
}

void Table::On(const RowsPut& event) {
  if (event.rows.empty()) {
    PutNewRows(event);
  } else {
    PutInRows(event);
    if (event.completes != kNoLease) Finish(event.completes, event.rows);
  }
}

void Table::PutNewRows(const RowsPut& event) {
  const RowId first = next_row_;
  next_row_ += static_cast<RowId>(event.new_rows);
  rows_ += event.new_rows;
  for (int64_t done = 0; done < event.new_rows;) {
    const RowId row = first + static_cast<RowId>(done);
    Page& page = PageFor(row);
    const int64_t count = std::min(event.new_rows - done, static_cast<int64_t>(page.first + Page::kRows - row));
    const uint64_t slot = row - page.first;
    for (uint64_t i = slot; i < slot + static_cast<uint64_t>(count); ++i) page.present[i / 64] |= uint64_t{1} << i % 64;
    page.live += count;
    done += count;
  }
  if (event.groups.empty()) {
    lone_rows_ += event.new_rows;
  } else {
    JoinGroups(event, first);
  }

  for (uint32_t column : event.columns) {
    columns_[column].ready_cells += event.new_rows;
    for (uint32_t reader : columns_[column].readers) ++hits_[reader];
  }
  for (int64_t done = 0; done < event.new_rows;) {
    const RowId row = first + static_cast<RowId>(done);
    Page& page = PageFor(row);
    const int64_t count = std::min(event.new_rows - done, static_cast<int64_t>(page.first + Page::kRows - row));
    PutSegment(event, page, done, count);
    done += count;
  }
  std::fill(hits_.begin(), hits_.end(), uint8_t{0});
}

// The new rows `first` to `first` + `count` of the put, which lie in one page.
void Table::PutSegment(const RowsPut& event, Page& page, int64_t first, int64_t count) {
  const RowId row = next_row_ - static_cast<RowId>(event.new_rows - first);
  const uint64_t slot = row - page.first;
  for (size_t i = 0; i < event.columns.size(); ++i) {
    CellRef* const cells = CellsFor(page, event.columns[i]) + slot;
    const CellRef from = event.first_cells[i];
    for (int64_t k = 0; k < count; ++k) cells[k] = {from.block, from.row + static_cast<uint32_t>(first + k)};
  }
  for (uint32_t index = 0; index < consumers_.size(); ++index) {
    Consumer& consumer = *consumers_[index];
    const size_t reads = consumer.reads.size();
    if (hits_[index] == 0 && reads > 0) continue;
    RowState* const states = page.consumers[index]->state.data() + slot;
    if (hits_[index] < reads) {
      std::memset(states, static_cast<int>(reads - hits_[index]), static_cast<size_t>(count));
    } else if (consumer.by_group() && !event.groups.empty()) {
      for (int64_t k = 0; k < count; ++k) Move(index, Place{&page, slot + static_cast<uint64_t>(k)}, kReady);
    } else {
      std::memset(states, kReady, static_cast<size_t>(count));
      consumer.ready += count;
      consumer.takeable.Insert(row, row + static_cast<RowId>(count));
    }
  }
}

void Table::JoinGroups(const RowsPut& event, RowId first_row) {
  Group* group = nullptr;
  for (size_t i = 0; i < event.groups.size(); ++i) {
    const RowId row = first_row + i;
    if (group == nullptr || group->id != event.groups[i]) {
      std::unique_ptr<Group>& entry = groups_[event.groups[i]];
      if (entry == nullptr) {
        entry = std::make_unique<Group>();
        entry->id = event.groups[i];
        entry->size = event.group_size;
        entry->leader = row;
        entry->counts.resize(group_consumers_);
        group_by_leader_[row] = entry.get();
        incomplete_groups_.Insert(row);
      }
      group = entry.get();
    }
    ++group->arrived;
    group->rows.push_back(row);
    if (group->complete()) incomplete_groups_.Erase(group->leader);
    const Place place = At(row);
    if (place.page->groups == nullptr) place.page->groups = std::make_unique<Group*[]>(Page::kRows);
    place.page->groups[place.slot] = group;
  }
}

void Table::PutInRows(const RowsPut& event) {
  const std::vector<Place> places = Locate(event.rows);
  for (size_t i = 0; i < event.columns.size(); ++i) {
    Column& column = columns_[event.columns[i]];
    CellRef from = event.first_cells[i];
    for (const Place& place : places) {
      CellRef& cell = CellsFor(*place.page, event.columns[i])[place.slot];
      const bool was_empty = cell.empty();
      if (!was_empty) dropped_cells_.push_back(cell);
      cell = from;
      ++from.row;
      if (!was_empty) continue;
      ++column.ready_cells;
      for (uint32_t reader : column.readers) {
        RowState& state = place.state(reader);
        if (state == 1) {
          Move(reader, place, kReady);
        } else {
          --state;  // it waited for this column among others
        }
      }
    }
  }
}

void Table::Move(uint32_t index, const Place& place, RowState to) {
  Consumer& consumer = *consumers_[index];
  RowState& state = place.state(index);
  const RowState from = std::exchange(state, to);
  if (from == to) return;
  const auto count = [&](RowState of, int64_t change) {
    if (of == kReady) consumer.ready += change;
    if (of == kLeased) consumer.leased += change;
    if (of == kDone) consumer.done += change;
  };
  count(from, -1);
  count(to, 1);
  if (consumer.by_group()) {
    if (Group* group = place.page->GroupAt(place.slot)) {
      MoveInGroup(consumer, *group, from, to);
      return;
    }
    consumer.lone_done += (to == kDone) - (from == kDone);
  }
  if (from == kReady) consumer.takeable.Erase(place.row());
  if (to == kReady) consumer.takeable.Insert(place.row());
}

bool Table::IsDead(const Consumer& consumer, const Group& group) {
  return group.counts[consumer.group_slot].done > 0 || group.broken();
}

void Table::CountDead(Consumer& consumer, const Group& group, bool after) {
  if (!IsDead(consumer, group)) return;
  consumer.dead_groups += after ? 1 : -1;
  if (!after) {
    consumer.stuck_groups.Erase(group.leader);
  } else if (group.counts[consumer.group_slot].done < static_cast<int64_t>(group.rows.size())) {
    consumer.stuck_groups.Insert(group.leader);
  }
}

void Table::MoveInGroup(Consumer& consumer, Group& group, RowState from, RowState to) {
  CountDead(consumer, group, /*after=*/false);
  Group::Counts& counts = group.counts[consumer.group_slot];
  const bool was_takeable = counts.ready == group.size;
  counts.ready += (to == kReady) - (from == kReady);
  counts.done += (to == kDone) - (from == kDone);
  const bool takeable = counts.ready == group.size;
  if (was_takeable && !takeable) consumer.takeable.Erase(group.leader);
  if (!was_takeable && takeable) consumer.takeable.Insert(group.leader);
  CountDead(consumer, group, /*after=*/true);
}

// ---- Leases.

void Table::On(const RowsTaken& event) {
  Consumer& consumer = *consumers_[event.consumer];
  ++consumer.takes;
  last_lease_ = event.lease;
  const uint32_t key = LeaseKey(event.lease);
  const std::vector<Place> places = Locate(event.rows);
  // Rows that were drawn at random are far apart: fetching what each needs before using any lets their misses overlap.
  for (const Place& place : places) {
    __builtin_prefetch(&place.state(event.consumer));
    __builtin_prefetch(&place.lease(event.consumer));
  }
  for (const Place& place : places) {
    Move(event.consumer, place, kLeased);
    place.lease(event.consumer) = key;
  }
  leases_[key] = Lease{.id = event.lease,
                       .consumer = event.consumer,
                       .at = event.at,
                       .expires = event.expires,
                       .rows = {event.rows.begin(), event.rows.end()},
                       .held = static_cast<int64_t>(event.rows.size())};
  consumer.leases.insert(event.lease);
  if (event.expires != absl::InfiniteFuture()) expiries_.emplace(event.expires, event.lease);
}

void Table::LeaveLease(uint32_t consumer, const Place& place) {
  Lease& lease = leases_.find(place.lease(consumer))->second;
  if (--lease.held == 0) EndLease(lease);
}

void Table::EndLease(const Lease& lease) {
  expiries_.erase({lease.expires, lease.id});
  consumers_[lease.consumer]->leases.erase(lease.id);
  leases_.erase(LeaseKey(lease.id));
}

void Table::On(const RowsCompleted& event) { Finish(event.lease, event.rows); }

void Table::Finish(LeaseId lease, std::span<const RowId> rows) {
  const uint32_t index = leases_.at(LeaseKey(lease)).consumer;
  Consumer& consumer = *consumers_[index];
  for (RowId row : rows) {
    const Place place = At(row);
    LeaveLease(index, place);
    Move(index, place, kDone);
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(row);
    ++consumer.completed;
    if (consumer.retained && MayRelease(place)) Remove(place, /*cleared=*/false);
  }
}

void Table::On(const RowsReturned& event) {
  const uint32_t consumer = leases_.at(LeaseKey(event.lease)).consumer;
  for (RowId row : event.rows) {
    const Place place = At(row);
    LeaveLease(consumer, place);
    Move(consumer, place, kReady);
  }
}

void Table::On(const LeaseExpired& event) {
  const Lease& lease = leases_.at(LeaseKey(event.lease));
  Consumer& consumer = *consumers_[lease.consumer];
  for (RowId row : lease.rows) {
    const std::optional<Place> place = Find(row);
    if (!place.has_value() || !Holds(lease, *place)) continue;
    Move(lease.consumer, *place, kReady);
    ++consumer.redeliveries[row];
    ++consumer.expired;
  }
  EndLease(lease);
}

// ---- The end of rows.

void Table::On(const RowsCleared& event) {
  for (RowId row : event.rows) Remove(At(row), /*cleared=*/true);
}

void Table::On(const SealChanged& event) { sealed_ = event.sealed; }

bool Table::MayRelease(const Place& place) const {
  return std::all_of(retainers_.begin(), retainers_.end(), [&](std::optional<uint32_t> consumer) {
    return consumer.has_value() && place.state(*consumer) == kDone;
  });
}

void Table::Remove(const Place& place, bool cleared) {
  Page& page = *place.page;
  for (uint32_t index = 0; index < consumers_.size(); ++index) {
    Consumer& consumer = *consumers_[index];
    if (place.state(index) == kLeased) LeaveLease(index, place);
    Move(index, place, InitialState(consumer.reads.size()));
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(place.row());
  }
  for (uint32_t column = 0; column < page.cells.size(); ++column) {
    if (page.CellAt(place.slot, column).empty()) continue;
    dropped_cells_.push_back(std::exchange(page.cells[column][place.slot], CellRef()));
    --columns_[column].ready_cells;
  }
  if (Group* group = page.GroupAt(place.slot)) {
    RemoveFromGroup(place, *group, cleared);
  } else {
    --lone_rows_;
  }
  page.present[place.slot / 64] &= ~(uint64_t{1} << place.slot % 64);
  --rows_;
  // Rows to come may still get ids of this page.
  if (--page.live > 0 || next_row_ < page.first + Page::kRows) return;
  if (last_page_ == &page) last_page_ = nullptr;
  page_order_.erase(page.first / Page::kRows);
  pages_.erase(page.first / Page::kRows);
}

void Table::RemoveFromGroup(const Place& place, Group& group, bool cleared) {
  for (const auto& consumer : consumers_) {
    if (consumer->by_group()) CountDead(*consumer, group, /*after=*/false);
  }
  incomplete_groups_.Erase(group.leader);
  group.arrived -= cleared;
  group.rows.erase(std::find(group.rows.begin(), group.rows.end(), place.row()));
  if (group.rows.empty()) {
    group_by_leader_.erase(group.leader);
    groups_.erase(group.id);
    return;
  }
  if (!group.complete()) incomplete_groups_.Insert(group.leader);
  for (const auto& consumer : consumers_) {
    if (consumer->by_group()) CountDead(*consumer, group, /*after=*/true);
  }
}

// ---- What is there.

std::vector<int32_t> Table::RedeliveriesOf(uint32_t consumer, std::span<const RowId> rows) const {
  const auto& redeliveries = consumers_[consumer]->redeliveries;
  if (redeliveries.empty()) return {};
  std::vector<int32_t> counts;
  for (RowId row : rows) {
    const auto it = redeliveries.find(row);
    counts.push_back(it == redeliveries.end() ? 0 : it->second);
  }
  return counts;
}

ConsumerStatus Table::StatusOf(uint32_t index) const {
  const Consumer& consumer = *consumers_[index];
  return {.waiting = rows_ - consumer.ready - consumer.leased - consumer.done,
          .ready = consumer.ready,
          .leased = consumer.leased,
          .done = consumer.done,
          .takeable = consumer.takeable.size(),
          .completed = consumer.completed,
          .expired = consumer.expired};
}

PartitionStatus Table::Status() const {
  PartitionStatus status;
  status.sealed = sealed_;
  status.rows = rows_;
  status.groups = static_cast<int64_t>(groups_.size());
  status.incomplete_groups = incomplete_groups_.size();
  for (const Column& column : columns_) {
    status.columns.push_back({column.spec.name, column.typed, column.spec.type, column.ready_cells});
  }
  for (uint32_t i = 0; i < consumers_.size(); ++i) {
    status.consumers.push_back({consumers_[i]->options.name, StatusOf(i)});
  }
  return status;
}

}  // namespace tdock
