// What the plain twin of a partition (slow_dock.h) knows, and how it is asked. For tests.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dock/testing/slow_rows.h"
#include "tdock/dock.h"

namespace tdock::dock {

// Every reason to refuse a call; none: it succeeds. A dock may report any one of them.
using Refusals = std::set<absl::StatusCode>;

// It scans everything on every call. Not thread-safe.
class SlowTable {
 public:
  using Code = absl::StatusCode;

  // Where the rows or groups that a rank can take stand: their first rows, ascending.
  std::vector<RowId> Takeable(const std::string& name, int32_t rank) const {
    const SlowConsumer& consumer = consumers_.at(name);
    std::vector<RowId> units;
    for (const auto& [id, row] : rows_) {
      if (consumer.options.unit == Unit::kRow || row.group == kNoGroup) {
        if (IsReady(name, id) && IsFor(consumer, rank, id)) units.push_back(id);
      }
    }
    for (const auto& [id, group] : groups_) {
      if (consumer.options.unit == Unit::kRow) break;
      const std::vector<RowId> rows = RowsOf(id);
      const bool ready = std::all_of(rows.begin(), rows.end(), [&](RowId row) { return IsReady(name, row); });
      if (!IsFor(consumer, rank, group.ordinal)) continue;
      if (ready && static_cast<int64_t>(rows.size()) == group.size) units.push_back(group.leader);
    }
    // Oldest first.
    std::sort(units.begin(), units.end(),
              [&](RowId a, RowId b) { return std::pair(-AgeOfUnit(a), a) < std::pair(-AgeOfUnit(b), b); });
    return units;
  }

  std::vector<RowId> RowsOfUnit(const std::string& name, RowId unit) const {
    if (consumers_.at(name).options.unit == Unit::kGroup) {
      for (const auto& [id, group] : groups_) {
        if (group.leader == unit) return RowsOf(id);
      }
    }
    return {unit};
  }

  std::vector<RowId> LeaseRows(LeaseId lease) const {
    const auto it = leases_.find(lease);
    if (it == leases_.end()) return {};
    return {it->second.rows.begin(), it->second.rows.end()};
  }

  ConsumerStatus StatusOf(const std::string& name) const {
    const SlowConsumer& consumer = consumers_.at(name);
    ConsumerStatus status;
    status.leased = Leased(name);
    status.done = static_cast<int64_t>(consumer.done.size());
    status.uncommitted = static_cast<int64_t>(consumer.uncommitted.size());
    status.committed_step = consumer.committed_step;
    status.quarantined = static_cast<int64_t>(consumer.quarantined.size());
    for (const auto& [id, row] : rows_) status.ready += IsReady(name, id);
    status.waiting =
        static_cast<int64_t>(rows_.size()) - status.ready - status.leased - status.quarantined - status.done;
    for (int32_t rank = 0; rank < consumer.options.ranks; ++rank) {
      status.takeable += static_cast<int64_t>(Takeable(name, rank).size());
    }
    status.unfinished = consumer.unfinished;
    status.sent_back = consumer.sent_back;
    status.stale_dropped = consumer.stale_dropped;
    status.reset = consumer.reset;
    status.completed = consumer.completed;
    status.expired = consumer.expired;
    return status;
  }
  // All but the bytes.
  RowCellStatus StatusOfCell(RowId id, const std::string& column) const {
    const SlowRow& row = rows_.at(id);
    RowCellStatus status{.column = column};
    for (const auto& [cells, state] :
         {std::pair(&row.cells, CellState::kReady), std::pair(&row.partial_cells, CellState::kPartial)}) {
      const auto it = cells->find(column);
      if (it == cells->end()) continue;
      status.state = state;
      status.weights_version = it->second.Oldest();
      status.writer = it->second.writer;
    }
    return status;
  }
  RowConsumerStatus StatusFor(const std::string& name, RowId row) const {
    const SlowConsumer& consumer = consumers_.at(name);
    RowConsumerStatus status{.consumer = name, .redeliveries = Redeliveries(name, row)};
    for (const auto& [id, lease] : leases_) {
      if (lease.consumer != name || !lease.rows.contains(row)) continue;
      status.lease = id;
      status.taken = lease.taken;
      status.expires = lease.expires;
    }
    if (const auto it = consumer.uncommitted.find(row); it != consumer.uncommitted.end()) {
      status.uncommitted_step = it->second;
    }
    status.state = consumer.done.contains(row)          ? DeliveryState::kDone
                   : consumer.quarantined.contains(row) ? DeliveryState::kQuarantined
                   : status.lease != kNoLease           ? DeliveryState::kLeased
                   : IsReady(name, row)                 ? DeliveryState::kReady
                                                        : DeliveryState::kWaiting;
    for (const std::string& column : consumer.options.reads) {
      const bool lacks = !rows_.at(row).cells.contains(column);
      if (lacks && status.state == DeliveryState::kWaiting) status.missing.push_back(column);
    }
    return status;
  }
  size_t consumers() const { return consumers_.size(); }
  int64_t IncompleteGroups() const {
    return std::count_if(groups_.begin(), groups_.end(),
                         [](const auto& g) { return g.second.arrived < g.second.size; });
  }
  int64_t ReadyCells(const std::string& column) const {
    return std::count_if(rows_.begin(), rows_.end(), [&](const auto& r) { return r.second.cells.contains(column); });
  }
  const SlowCell* Find(RowId row, const std::string& column) const {
    const auto it = rows_.find(row);
    if (it == rows_.end()) return nullptr;
    const auto cell = it->second.cells.find(column);
    return cell == it->second.cells.end() ? nullptr : &cell->second;
  }
  std::vector<RowId> AllRows() const {
    std::vector<RowId> rows;
    for (const auto& [id, row] : rows_) rows.push_back(id);
    return rows;
  }
  std::vector<RowId> RowsOf(GroupId group) const {
    std::vector<RowId> rows;
    for (const auto& [id, row] : rows_) {
      if (row.group == group && group != kNoGroup) rows.push_back(id);
    }
    return rows;
  }
  std::vector<RowId> RowsWith(const Tags& wanted) const {
    std::vector<RowId> rows;
    for (const auto& [id, row] : rows_) {
      if (std::includes(row.tags.begin(), row.tags.end(), wanted.begin(), wanted.end())) rows.push_back(id);
    }
    return rows;
  }
  std::optional<RowId> FindKey(const std::string& key) const {
    for (const auto& [id, row] : rows_) {
      if (!key.empty() && row.key == key) return id;
    }
    return std::nullopt;
  }
  const std::string& KeyOf(RowId row) const { return rows_.at(row).key; }
  const Tags& TagsOf(RowId row) const { return rows_.at(row).tags; }
  int32_t AgeOf(RowId row) const { return rows_.at(row).age; }
  uint32_t EpochOf(RowId row) const { return rows_.at(row).epoch; }
  GroupId GroupOf(RowId row) const { return rows_.at(row).group; }
  int32_t Redeliveries(const std::string& consumer, RowId row) const {
    const auto& counts = consumers_.at(consumer).redeliveries;
    const auto it = counts.find(row);
    return it == counts.end() ? 0 : it->second;
  }
  bool HasGroup(GroupId group) const { return groups_.contains(group); }
  bool sealed() const { return sealed_; }
  size_t groups() const { return groups_.size(); }
  // Empty if the lease is over.
  std::string ConsumerOf(LeaseId lease) const {
    const auto it = leases_.find(lease);
    return it == leases_.end() ? "" : it->second.consumer;
  }
  const ConsumerOptions& OptionsOf(const std::string& name) const { return consumers_.at(name).options; }
  bool HasConsumer(const std::string& name) const { return consumers_.contains(name); }
  RowId next_row() const { return next_row_; }
  LeaseId last_lease() const { return last_lease_; }

 protected:
  explicit SlowTable(const PartitionOptions& options) : options_(options), retain_for_(options.retain_for) {}

  void CheckRows(const std::vector<RowId>& rows, Refusals& refusals) const {
    if (std::set<RowId>(rows.begin(), rows.end()).size() != rows.size()) refusals.insert(Code::kInvalidArgument);
    for (RowId row : rows) {
      if (!rows_.contains(row)) refusals.insert(Code::kNotFound);
    }
  }

  int64_t Leased(const std::string& consumer) const {
    size_t rows = 0;
    for (const auto& [id, lease] : leases_) rows += lease.consumer == consumer ? lease.rows.size() : 0;
    return static_cast<int64_t>(rows);
  }
  bool IsLeased(const std::string& consumer, RowId row) const {
    return std::any_of(leases_.begin(), leases_.end(), [&](const auto& lease) {
      return lease.second.consumer == consumer && lease.second.rows.contains(row);
    });
  }

  bool IsReady(const std::string& name, RowId id) const {
    const SlowConsumer& consumer = consumers_.at(name);
    if (consumer.IsOut(id) || IsLeased(name, id)) return false;
    const auto& reads = consumer.options.reads;
    return std::all_of(reads.begin(), reads.end(),
                       [&](const std::string& column) { return rows_.at(id).cells.contains(column); });
  }

  // The first row of a group may be gone.
  int32_t AgeOfUnit(RowId unit) const {
    for (const auto& [id, group] : groups_) {
      if (group.leader == unit) return group.age;
    }
    const SlowRow& row = rows_.at(unit);
    return row.group == kNoGroup ? row.age : groups_.at(row.group).age;
  }

  static bool IsFor(const SlowConsumer& consumer, int32_t rank, uint64_t ordinal) {
    return ordinal % static_cast<uint64_t>(consumer.options.ranks) == static_cast<uint64_t>(rank);
  }

  const PartitionOptions options_;
  std::vector<std::string> retain_for_;
  bool sealed_ = false;
  RowId next_row_ = 0;
  LeaseId last_lease_ = kNoLease;
  std::map<RowId, SlowRow> rows_;
  std::set<RowId> dropped_;
  std::map<GroupId, SlowGroup> groups_;
  uint64_t groups_begun_ = 0;
  std::map<std::string, SlowConsumer> consumers_;
  std::map<LeaseId, SlowLease> leases_;
};

}  // namespace tdock::dock
