#include "dock/table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace tdock {
namespace {

void AddConsumer(Page& page, const Consumer& consumer) {
  page.consumers.push_back(std::make_unique_for_overwrite<Page::ConsumerStates>());
  page.consumers.back()->state.fill(consumer.initial_state());
}

}  // namespace

Table::Table(PartitionOptions options) : options_(std::move(options)), retainers_(options_.retain_for.size()) {
  for (const ColumnSpec& spec : options_.columns) On(ColumnAdded{&spec});
}

void Table::Apply(const Event& event) {
  ++changes_;
  std::visit([this](const auto& e) { On(e); }, event);
}

// ---- Columns and consumers.

void Table::On(const ColumnAdded& event) {
  Schema::Column& column = schema_[schema_.Name(event.spec->name)];
  column.spec.type = event.spec->type;
  column.typed = true;
}

void Table::On(const ConsumerRegistered& event) {
  const uint32_t index = static_cast<uint32_t>(consumers_.size());
  const ConsumerOptions& options = *event.options;
  std::vector<uint32_t> reads, writes;
  for (const std::string& name : options.reads) {
    reads.push_back(schema_.Name(name));
    schema_[reads.back()].readers.push_back(index);
  }
  for (const std::string& name : options.writes) {
    writes.push_back(schema_.Name(name));
    schema_[writes.back()].writers.push_back(index);
  }
  bool retained = false;
  for (size_t i = 0; i < retainers_.size(); ++i) {
    if (options_.retain_for[i] != options.name) continue;
    retainers_[i] = index;
    retained = true;
  }
  const size_t group_slot = options.unit == Unit::kGroup ? group_consumers_++ : 0;
  consumer_by_name_.emplace(options.name, index);
  consumers_.push_back(std::make_unique<Consumer>(options, std::move(reads), std::move(writes), group_slot, retained));
  hits_.resize(consumers_.size());
  ShowRowsTo(index);
}

void Table::ShowRowsTo(uint32_t index) {
  Consumer& consumer = *consumers_[index];
  pages_.ForEachPage([&](Page& page) { AddConsumer(page, consumer); });
  if (consumer.by_group()) {
    groups_.ForEach([&](Group& group) {
      group.counts.resize(group_consumers_);
      consumer.Enter(group);
    });
  }
  pages_.ForEachRow(0, [&](const Place& place) {
    if (!consumer.by_group() || place.group() == nullptr) {
      consumer.Restand(place.row(), 1, Standing::kAbsent, Standing::kComing);
    }
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
  if (page.cells.size() <= column) page.cells.resize(schema_.size());
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
  for (uint32_t column : event.columns) {
    schema_[column].ready_cells += event.new_rows;
    for (uint32_t reader : schema_[column].readers) ++hits_[reader];
  }
  int64_t done = 0;
  pages_.Append(
      event.new_rows,
      [&](Page& page) {
        page.consumers.reserve(consumers_.size());
        for (const auto& consumer : consumers_) AddConsumer(page, *consumer);
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
}

// The `count` new rows of the put from its row `first` on, which lie in one page from `slot` on.
void Table::PutSegment(const RowsPut& event, Page& page, uint64_t slot, int64_t first, int64_t count) {
  for (size_t i = 0; i < event.columns.size(); ++i) {
    CellRef* const cells = CellsFor(page, event.columns[i]) + slot;
    const CellRef from = event.first_cells[i];
    for (int64_t k = 0; k < count; ++k) cells[k] = {from.block, from.row + static_cast<uint32_t>(first + k)};
  }
  for (uint32_t index = 0; index < consumers_.size(); ++index) {
    Consumer& consumer = *consumers_[index];
    const size_t reads = consumer.reads().size();
    const bool ready = hits_[index] == reads;
    RowState* const states = page.consumers[index]->state.data() + slot;
    if (!ready && hits_[index] > 0) {
      std::memset(states, static_cast<int>(reads - hits_[index]), static_cast<size_t>(count));
    }
    if (consumer.by_group() && !event.groups.empty()) {
      for (int64_t k = 0; ready && k < count; ++k) Move(index, Place{&page, slot + static_cast<uint64_t>(k)}, kReady);
      continue;
    }
    if (ready) {
      std::memset(states, kReady, static_cast<size_t>(count));
      consumer.EnterState(kReady, page.first + slot, count);
    }
    consumer.Restand(page.first + slot, count, Standing::kAbsent, ready ? Standing::kTakeable : Standing::kComing);
  }
}

void Table::JoinGroups(Page& page, uint64_t slot, std::span<const GroupId> ids, int64_t group_size) {
  if (page.groups == nullptr) page.groups = std::make_unique<Group*[]>(Page::kRows);
  for (size_t i = 0; i < ids.size();) {
    const RowId row = page.first + slot + i;
    Group& group = groups_.Open(ids[i], group_size, row, group_consumers_);
    LeaveConsumers(group);
    for (const GroupId id = ids[i]; i < ids.size() && ids[i] == id; ++i) {
      groups_.AddRow(group, page.first + slot + i);
      page.groups[slot + i] = &group;
    }
    EnterConsumers(group);
  }
}

void Table::LeaveConsumers(const Group& group) {
  for (const auto& consumer : consumers_) {
    if (consumer->by_group()) consumer->Leave(group);
  }
}

void Table::EnterConsumers(const Group& group) {
  for (const auto& consumer : consumers_) {
    if (consumer->by_group()) consumer->Enter(group);
  }
}

void Table::PutInRows(const RowsPut& event) {
  const std::vector<Place> places = Locate(event.rows);
  for (size_t i = 0; i < event.columns.size(); ++i) {
    Schema::Column& column = schema_[event.columns[i]];
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
        } else if (IsWaiting(state)) {
          --state;  // it waited for this column among others
        }
      }
    }
  }
}

void Table::Move(uint32_t index, const Place& place, RowState to) {
  Consumer& consumer = *consumers_[index];
  const RowState from = std::exchange(place.state(index), to);
  if (from == to) return;
  consumer.LeaveState(from, place.row(), 1);
  consumer.EnterState(to, place.row(), 1);
  Group* const group = consumer.by_group() ? place.group() : nullptr;
  if (group == nullptr) {
    consumer.Restand(place.row(), 1, StandingOf(from), StandingOf(to));
    return;
  }
  consumer.Leave(*group);
  consumer.CountInGroup(*group, from, -1);
  consumer.CountInGroup(*group, to, 1);
  consumer.Enter(*group);
}

// ---- Leases.

void Table::On(const RowsTaken& event) {
  Consumer& consumer = *consumers_[event.consumer];
  ++consumer.takes;
  const std::vector<Place> places = Locate(event.rows);
  // Rows that were drawn at random are far apart: fetching what each needs before using any lets their misses overlap.
  for (const Place& place : places) {
    __builtin_prefetch(&place.state(event.consumer));
    __builtin_prefetch(&place.lease(event.consumer));
  }
  for (const Place& place : places) {
    Move(event.consumer, place, kLeased);
    place.lease(event.consumer) = Lease::KeyOf(event.lease);
  }
  leases_.Add({.id = event.lease,
               .consumer = event.consumer,
               .at = event.at,
               .expires = event.expires,
               .rows = {event.rows.begin(), event.rows.end()},
               .held = static_cast<int64_t>(event.rows.size())});
  consumer.leases.insert(event.lease);
}

void Table::LeaveLease(uint32_t consumer, const Place& place) {
  Lease& lease = leases_.ByKey(place.lease(consumer));
  if (--lease.held == 0) EndLease(lease);
}

void Table::EndLease(const Lease& lease) {
  consumers_[lease.consumer]->leases.erase(lease.id);
  leases_.Remove(lease);
}

void Table::On(const RowsCompleted& event) { Finish(event.lease, event.rows); }

void Table::Finish(LeaseId lease, std::span<const RowId> rows) {
  const uint32_t index = leases_.Find(lease)->consumer;
  Consumer& consumer = *consumers_[index];
  for (RowId row : rows) {
    const Place place = pages_.At(row);
    LeaveLease(index, place);
    Move(index, place, kDone);
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(row);
    ++consumer.completed;
    if (consumer.retained() && MayRelease(place)) Remove(place, /*cleared=*/false);
  }
}

void Table::On(const RowsReturned& event) {
  const uint32_t consumer = leases_.Find(event.lease)->consumer;
  for (RowId row : event.rows) {
    const Place place = pages_.At(row);
    LeaveLease(consumer, place);
    Move(consumer, place, kReady);
  }
}

void Table::On(const LeaseExpired& event) {
  const Lease& lease = *leases_.Find(event.lease);
  Consumer& consumer = *consumers_[lease.consumer];
  for (RowId row : lease.rows) {
    const std::optional<Place> place = pages_.Find(row);
    if (!place.has_value() || !Holds(lease, *place)) continue;
    const int32_t deliveries = ++consumer.redeliveries[row];
    Move(lease.consumer, *place, deliveries < consumer.options().max_deliveries ? kReady : kQuarantined);
    ++consumer.expired;
  }
  EndLease(lease);
}

void Table::On(const LeaseRenewed& event) { leases_.Renew(event.lease, event.expires); }

void Table::On(const RowsRequeued& event) {
  for (RowId row : event.rows) {
    consumers_[event.consumer]->redeliveries.erase(row);
    Move(event.consumer, pages_.At(row), kReady);
  }
}

// ---- The end of rows.

void Table::On(const RowsDropped& event) {
  for (RowId row : event.rows) {
    const Place place = pages_.At(row);
    if (!retainers_.empty()) {
      Remove(place, /*cleared=*/false);
      continue;
    }
    place.page->dropped[place.slot / 64] |= uint64_t{1} << place.slot % 64;
    for (uint32_t index = 0; index < consumers_.size(); ++index) {
      if (place.state(index) == kLeased) LeaveLease(index, place);
      consumers_[index]->redeliveries.erase(row);
      Move(index, place, kDone);
    }
  }
}

void Table::On(const RowsCleared& event) {
  for (RowId row : event.rows) Remove(pages_.At(row), /*cleared=*/true);
}

void Table::On(const SealChanged& event) { sealed_ = event.sealed; }

bool Table::MayRelease(const Place& place) const {
  return std::all_of(retainers_.begin(), retainers_.end(), [&](std::optional<uint32_t> consumer) {
    return consumer.has_value() && place.state(*consumer) == kDone;
  });
}

void Table::Remove(const Place& place, bool cleared) {
  Page& page = *place.page;
  Group* const group = place.group();
  if (group != nullptr) LeaveConsumers(*group);
  for (uint32_t index = 0; index < consumers_.size(); ++index) {
    Consumer& consumer = *consumers_[index];
    const RowState state = place.state(index);
    if (state == kLeased) LeaveLease(index, place);
    if (!consumer.redeliveries.empty()) consumer.redeliveries.erase(place.row());
    consumer.LeaveState(state, place.row(), 1);
    if (consumer.by_group() && group != nullptr) {
      consumer.CountInGroup(*group, state, -1);
    } else {
      consumer.Restand(place.row(), 1, StandingOf(state), Standing::kAbsent);
    }
    place.state(index) = consumer.initial_state();
  }
  for (uint32_t column = 0; column < page.cells.size(); ++column) {
    if (place.cell(column).empty()) continue;
    dropped_cells_.push_back(std::exchange(page.cells[column][place.slot], CellRef()));
    --schema_[column].ready_cells;
  }
  if (group != nullptr) {
    page.groups[place.slot] = nullptr;
    if (!groups_.RemoveRow(*group, place.row(), cleared)) EnterConsumers(*group);
  }
  pages_.Remove(place);
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
  const int64_t quarantined = consumer.quarantined().size();
  return {.waiting = pages_.rows() - consumer.ready() - consumer.leased() - quarantined - consumer.done(),
          .ready = consumer.ready(),
          .leased = consumer.leased(),
          .quarantined = quarantined,
          .done = consumer.done(),
          .takeable = consumer.takeable().size(),
          .completed = consumer.completed,
          .expired = consumer.expired};
}

PartitionStatus Table::Status() const {
  PartitionStatus status;
  status.sealed = sealed_;
  status.rows = pages_.rows();
  status.groups = groups_.size();
  status.incomplete_groups = groups_.incomplete().size();
  for (const Schema::Column& column : schema_) {
    status.columns.push_back({column.spec.name, column.typed, column.spec.type, column.ready_cells});
  }
  for (uint32_t i = 0; i < consumers_.size(); ++i) {
    status.consumers.push_back({consumers_[i]->options().name, StatusOf(i)});
  }
  return status;
}

}  // namespace tdock
