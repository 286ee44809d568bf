// Which rows are too old, and which consumers recompute them.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/table/decisions.h"

namespace tdock::dock {
namespace {

using ColumnSet = std::vector<uint32_t>;  // ascending
// Of one row, the columns that it would be sent back for.
using StaleColumns = absl::FunctionRef<ColumnSet(const Place&)>;

// The writers of these columns, the consumers that read what those write, and so on.
absl::StatusOr<SendBack> ProducersOf(const TableState& table, const ColumnSet& stale, RowId example) {
  std::vector<uint32_t> to_visit;
  for (uint32_t column : stale) {
    const std::vector<uint32_t>& writers = table.schema[column].writers;
    to_visit.insert(to_visit.end(), writers.begin(), writers.end());
    if (!writers.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "column '", table.schema[column].spec.name, "' of row ", example,
        " was made by weights that are too old or rolled back, and no registered consumer writes it: register the "
        "one that does, or choose to drop stale rows"));
  }
  std::set<uint32_t> consumers, columns;
  while (!to_visit.empty()) {
    const uint32_t index = to_visit.back();
    to_visit.pop_back();
    if (!consumers.insert(index).second) continue;
    for (uint32_t column : table.consumer(index).writes()) {
      if (!columns.insert(column).second) continue;
      for (const auto* readers : {&table.schema[column].readers, &table.schema[column].optional_readers}) {
        to_visit.insert(to_visit.end(), readers->begin(), readers->end());
      }
    }
  }
  SendBack plan{
      .rows = {}, .columns = {columns.begin(), columns.end()}, .consumers = {consumers.begin(), consumers.end()}};
  plan.whole_groups =
      std::any_of(consumers.begin(), consumers.end(), [&](uint32_t index) { return table.consumer(index).by_group(); });
  return plan;
}

// For consumers that take it as a whole.
bool CanBeRecomputed(const TableState& table, const Group& group) {
  return !group.broken() && std::none_of(group.rows.begin(), group.rows.end(), [&](RowId row) {
    const Place place = table.pages.At(row);
    return place.page->IsDropped(place.slot);
  });
}

absl::StatusOr<StaleRows> PlanSendBack(const TableState& table, std::span<const RowId> rows, bool whole_groups,
                                       StaleColumns stale_columns) {
  std::map<ColumnSet, SendBack> plans;
  const auto plan_for = [&](const ColumnSet& stale, RowId row) -> absl::StatusOr<SendBack*> {
    const auto it = plans.find(stale);
    if (it != plans.end()) return &it->second;
    TDOCK_ASSIGN_OR_RETURN(SendBack plan, ProducersOf(table, stale, row));
    return &plans.emplace(stale, std::move(plan)).first->second;
  };
  // If one row of a group must go as part of the group, the whole group goes, for whatever is old in any of its rows.
  std::map<const Group*, ColumnSet> groups;
  std::vector<std::pair<Place, ColumnSet>> found;
  for (const Place& place : table.Locate(rows)) {
    ColumnSet stale = stale_columns(place);
    if (stale.empty()) continue;
    TDOCK_ASSIGN_OR_RETURN(const SendBack* plan, plan_for(stale, place.row()));
    if (place.group() != nullptr && (whole_groups || plan->whole_groups)) groups[place.group()];
    found.emplace_back(place, std::move(stale));
  }
  for (const auto& [place, stale] : found) {
    const auto group = groups.find(place.group());
    if (group == groups.end()) {
      plans.at(stale).rows.push_back(place.row());
      continue;
    }
    ColumnSet all;
    std::set_union(group->second.begin(), group->second.end(), stale.begin(), stale.end(), std::back_inserter(all));
    group->second = std::move(all);
  }
  StaleRows result;
  for (const auto& [group, stale] : groups) {
    TDOCK_ASSIGN_OR_RETURN(SendBack* const plan, plan_for(stale, group->leader));
    std::vector<RowId>& where = CanBeRecomputed(table, *group) ? plan->rows : result.dropped;
    for (RowId row : group->rows) {
      const Place place = table.pages.At(row);
      if (!place.page->IsDropped(place.slot)) where.push_back(row);
    }
  }
  // In an order that does not depend on the groups' addresses.
  std::sort(result.dropped.begin(), result.dropped.end());
  for (auto& [stale, plan] : plans) {
    if (plan.rows.empty()) continue;
    std::sort(plan.rows.begin(), plan.rows.end());
    result.sent_back.push_back(std::move(plan));
  }
  return result;
}

}  // namespace

absl::Status CheckPublish(const TableState& table, int64_t version) {
  if (version < 0) return absl::InvalidArgumentError(absl::StrCat("weights version ", version, " is negative"));
  if (version >= table.weights_version) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("weights version ", version, " is lower than ",
                                                    table.weights_version, ", which is published in partition '",
                                                    table.options.name, "'; use Rollback to restore older weights"));
}

TableState::Versions TableState::VersionsOf(RowId row, uint32_t column, int64_t of_block) const {
  const std::vector<Piece>* const pieces = histories.PiecesOf(row, column);
  if (pieces == nullptr || pieces->empty()) return {of_block, of_block};
  Versions versions;
  for (const Piece& piece : *pieces) {
    if (piece.weights_version == kNoWeightsVersion) continue;
    const bool first = versions.oldest == kNoWeightsVersion;
    versions.oldest = first ? piece.weights_version : std::min(versions.oldest, piece.weights_version);
    versions.newest = std::max(versions.newest, piece.weights_version);
  }
  return versions;
}

absl::StatusOr<StaleRows> FindStale(const TableState& table, uint32_t index, std::span<const RowId> rows,
                                    VersionOf version_of) {
  StaleRows found;
  const Consumer& consumer = table.consumer(index);
  const int64_t lag = consumer.options().max_version_lag;
  if (table.weights_version <= lag) return found;  // no existing version can be too old
  const int64_t oldest = table.weights_version - lag;
  const auto is_old = [&](const Place& place, uint32_t column) {
    const CellRef cell = place.cell(column);
    if (!cell.there() || (cell.partial() && !consumer.Writes(column))) return false;
    const TableState::Versions versions = table.VersionsOf(place.row(), column, version_of(cell.plain()));
    return versions.oldest != kNoWeightsVersion && versions.oldest < oldest;
  };
  const auto old_columns = [&](const Place& place) {
    ColumnSet old;
    for (const auto* columns : {&consumer.reads(), &consumer.reads_optional()}) {
      for (uint32_t column : *columns) {
        if (is_old(place, column)) old.push_back(column);
      }
    }
    std::sort(old.begin(), old.end());
    return old;
  };
  if (consumer.options().stale == Stale::kSendBack) {
    return PlanSendBack(table, rows, consumer.by_group(), old_columns);
  }
  std::set<RowId> dropped;
  for (const Place& place : table.Locate(rows)) {
    if (dropped.contains(place.row()) || old_columns(place).empty()) continue;
    dropped.insert(place.row());
    if (consumer.by_group() && place.group() != nullptr) {
      dropped.insert(place.group()->rows.begin(), place.group()->rows.end());
    }
  }
  found.dropped.assign(dropped.begin(), dropped.end());
  return found;
}

absl::StatusOr<StaleRows> FindLater(const TableState& table, int64_t version, VersionOf version_of) {
  if (table.newest_version <= version) return StaleRows();
  const auto later_columns = [&](const Place& place) {
    ColumnSet later;
    for (uint32_t column = 0; column < table.schema.size(); ++column) {
      const CellRef cell = place.cell(column);
      if (cell.there() && table.VersionsOf(place.row(), column, version_of(cell.plain())).newest > version) {
        later.push_back(column);
      }
    }
    return later;
  };
  std::vector<RowId> rows;
  table.pages.ForEachRow(0, [&](const Place& place) {
    if (!place.page->IsDropped(place.slot)) rows.push_back(place.row());
    return true;
  });
  return PlanSendBack(table, rows, /*whole_groups=*/false, later_columns);
}

}  // namespace tdock::dock
