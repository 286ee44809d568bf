// How the plain twin of a partition (slow_dock.h) judges versions, and sends rows back. For tests.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dock/testing/slow_table.h"

namespace tdock::dock {

// Not thread-safe.
class SlowVersions : public SlowTable {
 public:
  Refusals CheckPublish(int64_t version) const {
    if (version < 0) return {Code::kInvalidArgument};
    return version < published_ ? Refusals{Code::kFailedPrecondition} : Refusals();
  }
  void Publish(int64_t version) { published_ = version; }
  int64_t published() const { return published_; }

  // What is to become of the rows that a take has chosen, or of all rows at a rollback.
  struct StaleRows {
    Refusals refusals;
    // For each row, the columns that are emptied and the consumers that are reset.
    struct Return {
      std::set<std::string> columns, consumers;
    };
    std::map<RowId, Return> sent_back;
    std::set<RowId> dropped;

    bool empty() const { return sent_back.empty() && dropped.empty() && refusals.empty(); }
  };

  StaleRows JudgeForTake(const std::string& name, const std::vector<RowId>& rows) const {
    const ConsumerOptions& options = consumers_.at(name).options;
    if (published_ <= options.max_version_lag) return {};
    const bool by_group = options.unit == Unit::kGroup;
    const auto old_columns = [&](RowId row) {
      std::set<std::string> old;
      for (const auto* columns : {&options.reads, &options.reads_optional}) {
        for (const std::string& column : *columns) {
          const SlowCell* const cell = CellSeenBy(options, row, column);
          if (cell != nullptr && cell->Oldest() != kNoWeightsVersion &&
              published_ - cell->Oldest() > options.max_version_lag) {
            old.insert(column);
          }
        }
      }
      return old;
    };
    if (options.stale == Stale::kSendBack) return JudgeRows(rows, by_group, old_columns);
    StaleRows stale_rows;
    for (RowId row : rows) {
      if (old_columns(row).empty()) continue;
      stale_rows.dropped.insert(row);
      if (by_group) {
        const std::vector<RowId> all = RowsOf(rows_.at(row).group);
        stale_rows.dropped.insert(all.begin(), all.end());
      }
    }
    return stale_rows;
  }

  StaleRows JudgeForRollback(int64_t version) const {
    std::vector<RowId> rows;
    for (const auto& [id, row] : rows_) {
      if (!dropped_.contains(id)) rows.push_back(id);
    }
    return JudgeRows(rows, /*by_group=*/false, [&](RowId row) {
      std::set<std::string> later;
      for (const auto* cells : {&rows_.at(row).cells, &rows_.at(row).partial_cells}) {
        for (const auto& [column, cell] : *cells) {
          if (cell.Newest() > version) later.insert(column);
        }
      }
      return later;
    });
  }

  void SendBack(const StaleRows& stale_rows, const std::string& for_whom) {
    for (const auto& [row, sent] : stale_rows.sent_back) {
      for (const std::string& column : sent.columns) {
        rows_.at(row).cells.erase(column);
        rows_.at(row).partial_cells.erase(column);
      }
      for (const std::string& name : sent.consumers) Reset(name, row, sent.columns);
      ++rows_.at(row).epoch;
      GrowOlder(row);
      if (!for_whom.empty()) ++consumers_.at(for_whom).sent_back;
    }
    std::erase_if(leases_, [](const auto& lease) { return lease.second.rows.empty(); });
  }

  // Null if it is not there, or is another's that is not complete.
  const SlowCell* CellSeenBy(const ConsumerOptions& options, RowId id, const std::string& column) const {
    const SlowRow& row = rows_.at(id);
    if (const auto it = row.cells.find(column); it != row.cells.end()) return &it->second;
    const auto it = row.partial_cells.find(column);
    const bool writes = std::find(options.writes.begin(), options.writes.end(), column) != options.writes.end();
    return it != row.partial_cells.end() && writes ? &it->second : nullptr;
  }

 protected:
  using SlowTable::SlowTable;

  void GrowOlder(RowId row) {
    SlowRow& which = rows_.at(row);
    ++which.age;
    if (const auto it = groups_.find(which.group); it != groups_.end()) {
      it->second.age = std::max(it->second.age, which.age);
    }
  }

  int64_t published_ = kNoWeightsVersion;

 private:
  template <class Columns>
  StaleRows JudgeRows(const std::vector<RowId>& rows, bool by_group, Columns columns_of) const {
    StaleRows stale_rows;
    std::map<GroupId, std::set<std::string>> groups;
    for (const bool only_groups : {true, false}) {
      for (RowId row : rows) {
        const std::set<std::string> columns = columns_of(row);
        if (columns.empty()) continue;
        const StaleRows::Return sent = ProducersOf(columns, stale_rows.refusals);
        const GroupId group = rows_.at(row).group;
        const bool groups_matter =
            by_group || std::any_of(sent.consumers.begin(), sent.consumers.end(),
                                    [&](auto& name) { return consumers_.at(name).options.unit == Unit::kGroup; });
        if (only_groups && groups_matter && group != kNoGroup) groups[group];
        if (only_groups) continue;
        if (const auto it = groups.find(group); it != groups.end()) {
          it->second.insert(columns.begin(), columns.end());
        } else {
          stale_rows.sent_back[row] = sent;
        }
      }
    }
    for (const auto& [group, columns] : groups) {
      const std::vector<RowId> all = RowsOf(group);
      // Nobody can take it as a whole any more.
      const bool broken = static_cast<int64_t>(all.size()) < groups_.at(group).arrived ||
                          std::any_of(all.begin(), all.end(), [&](RowId row) { return dropped_.contains(row); });
      for (RowId row : all) {
        if (dropped_.contains(row)) continue;
        if (broken) {
          stale_rows.dropped.insert(row);
        } else {
          stale_rows.sent_back[row] = ProducersOf(columns, stale_rows.refusals);
        }
      }
    }
    return stale_rows;
  }

  // Until nothing more is found.
  StaleRows::Return ProducersOf(const std::set<std::string>& columns, Refusals& refusals) const {
    StaleRows::Return sent;
    for (const std::string& column : columns) {
      bool any = false;
      for (const auto& [name, consumer] : consumers_) {
        const auto& writes = consumer.options.writes;
        if (std::find(writes.begin(), writes.end(), column) == writes.end()) continue;
        sent.consumers.insert(name);
        any = true;
      }
      if (!any) refusals.insert(Code::kFailedPrecondition);
    }
    for (size_t before = ~size_t{0}; before != sent.columns.size() + sent.consumers.size();) {
      before = sent.columns.size() + sent.consumers.size();
      for (const std::string& name : sent.consumers) {
        const auto& writes = consumers_.at(name).options.writes;
        sent.columns.insert(writes.begin(), writes.end());
      }
      for (const auto& [name, consumer] : consumers_) {
        for (const auto* reads : {&consumer.options.reads, &consumer.options.reads_optional}) {
          for (const std::string& column : *reads) {
            if (sent.columns.contains(column)) sent.consumers.insert(name);
          }
        }
      }
    }
    return sent;
  }

  void Reset(const std::string& name, RowId row, const std::set<std::string>& emptied) {
    SlowConsumer& consumer = consumers_.at(name);
    const std::vector<std::string>& writes = consumer.options.writes;
    const bool writes_it =
        std::any_of(writes.begin(), writes.end(), [&](const std::string& column) { return emptied.contains(column); });
    // What is committed is part of saved weights.
    const bool committed = consumer.done.contains(row) && !consumer.uncommitted.contains(row);
    if (consumer.options.checkpointed && committed && !writes_it) return;
    consumer.reset += consumer.IsOut(row) || IsLeased(name, row);
    for (auto& [id, lease] : leases_) {
      if (lease.consumer == name) lease.rows.erase(row);
    }
    consumer.Forget(row);
  }
};

}  // namespace tdock::dock
