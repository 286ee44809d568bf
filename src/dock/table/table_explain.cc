// What a consumer or a fetch waits for, in words.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dock/table/decisions.h"
#include "dock/table/table_text.h"

namespace tdock::dock {
namespace {

// A message names at most this many reasons, leases or groups, and counts the rest.
constexpr int kNamed = 10;
// At most this many rows are examined for reasons, and of a fetch about this many of their missing cells.
constexpr size_t kLookedAt = 100;
constexpr size_t kCellsLookedAt = 4096;

// Rows in ascending order: "3", "4 to 7, 9".
std::string RangesOf(const std::vector<RowId>& rows) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    for (end = begin + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    absl::StrAppend(&text, begin == 0 ? "" : ", ", rows[begin]);
    if (end - begin > 1) absl::StrAppend(&text, end - begin == 2 ? ", " : " to ", rows[end - 1]);
  }
  return text;
}

std::string Ago(absl::Duration duration) { return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1))); }

// Missing cells, grouped by reason and columns.
class MissingCells {
 public:
  void Add(RowId row, std::string why, std::vector<std::string> columns) {
    for (Shortage& shortage : shortages_) {
      if (shortage.why != why || shortage.columns != columns) continue;
      shortage.rows.push_back(row);
      return;
    }
    if (shortages_.size() < kNamed) shortages_.push_back({std::move(why), std::move(columns), {row}});
  }
  void AppendTo(std::string& text) {
    for (Shortage& shortage : shortages_) {
      std::sort(shortage.rows.begin(), shortage.rows.end());
      shortage.rows.erase(std::unique(shortage.rows.begin(), shortage.rows.end()), shortage.rows.end());
      shortage.why[0] = absl::ascii_toupper(static_cast<unsigned char>(shortage.why[0]));
      const bool one = shortage.rows.size() == 1;
      absl::StrAppend(&text, ". ", shortage.why, one ? ": row " : ": rows ", RangesOf(shortage.rows),
                      one ? " lacks " : " lack ", Quoted(shortage.columns));
    }
  }

 private:
  struct Shortage {
    std::string why;
    std::vector<std::string> columns;
    std::vector<RowId> rows;
  };
  std::vector<Shortage> shortages_;
};

std::string LeaseText(const Lease& lease, absl::Time now) {
  std::string text = absl::StrCat("under lease ", lease.id, " for ", Ago(now - lease.at));
  if (lease.expires != absl::InfiniteFuture()) absl::StrAppend(&text, ", which ends in ", Ago(lease.expires - now));
  return text;
}

// Which consumers could write a missing cell, and why they have not.
std::string WriterText(const TableState& table, const Place& place, uint32_t column, absl::Time now) {
  const std::vector<uint32_t>& writers = table.schema[column].writers;
  if (writers.empty()) return "no registered consumer writes this";
  std::string text;
  for (uint32_t index : std::span(writers).first(std::min<size_t>(writers.size(), kNamed))) {
    const Consumer& writer = table.consumer(index);
    absl::StrAppend(&text, text.empty() ? "" : "; ", "writer '", writer.options().name, "' ");
    const RowState state = place.state(index);
    if (state == kLeased) {
      absl::StrAppend(&text, "has held the row ", LeaseText(table.leases.ByKey(place.lease(index)), now));
    } else if (state == kReady) {
      absl::StrAppend(&text, "has not taken the row");
    } else if (state == kQuarantined) {
      absl::StrAppend(&text, "has lost the row ", writer.options().max_deliveries, " times, and it is quarantined");
    } else if (state == kDone || state == kUncommitted) {
      absl::StrAppend(&text, "is done with the row and has not written it");
    } else {
      std::vector<uint32_t> missing;
      for (uint32_t read : writer.reads()) {
        if (place.cell(read).empty()) missing.push_back(read);
      }
      const auto name_of = [&](uint32_t read) { return absl::string_view(table.schema[read].spec.name); };
      absl::StrAppend(&text, "waits for ", Quoted(missing, name_of), " of the row");
    }
  }
  if (writers.size() > kNamed) absl::StrAppend(&text, "; and ", writers.size() - kNamed, " more consumers write it");
  return text;
}

size_t AddMissing(const TableState& table, RowId row, std::span<const uint32_t> columns, absl::Time now,
                  MissingCells& missing) {
  const std::optional<Place> place = table.pages.Find(row);
  if (!place.has_value()) return 0;
  std::vector<std::pair<std::string, std::vector<std::string>>> columns_by_reason;
  absl::flat_hash_map<std::string, size_t> places;  // of the reasons
  size_t cells = 0;
  for (uint32_t column : columns) {
    if (!place->cell(column).empty()) continue;
    ++cells;
    std::string why = WriterText(table, *place, column, now);
    const auto [known, is_new] = places.try_emplace(why, columns_by_reason.size());
    if (is_new) columns_by_reason.emplace_back(std::move(why), std::vector<std::string>());
    columns_by_reason[known->second].second.push_back(table.schema[column].spec.name);
  }
  for (auto& [why, names] : columns_by_reason) missing.Add(row, std::move(why), std::move(names));
  return cells;
}

void ExplainColumns(const TableState& table, const Consumer& consumer, std::string& text) {
  std::map<int64_t, std::vector<std::string>, std::greater<>> columns_by_missing;
  for (uint32_t index : consumer.reads()) {
    const int64_t missing = table.pages.rows() - table.schema[index].ready_cells;
    if (missing > 0) columns_by_missing[missing].push_back(table.schema[index].spec.name);
  }
  const char* separator = ". Missing: ";
  for (const auto& [missing, columns] : columns_by_missing) {
    absl::StrAppend(&text, separator, Quoted(columns), " of ", missing, missing == 1 ? " row" : " rows");
    separator = "; ";
  }
}

void ExplainWaitingRows(const TableState& table, uint32_t index, absl::Time now, std::string& text) {
  const Consumer& consumer = table.consumer(index);
  std::vector<RowId> rows;
  consumer.waiting().First(kLookedAt, rows);
  MissingCells missing;
  for (RowId row : rows) AddMissing(table, row, consumer.reads(), now, missing);
  missing.AppendTo(text);
  const size_t others = consumer.waiting().size() - rows.size();
  if (others > 0) absl::StrAppend(&text, ". Not examined: ", others, " more waiting rows");
}

void ExplainLeases(const TableState& table, uint32_t index, absl::Time now, std::string& text) {
  const absl::btree_set<LeaseId>& leases = table.consumer(index).leases;
  size_t named = 0;
  for (auto it = leases.begin(); it != leases.end() && named < kNamed; ++it, ++named) {
    const Lease& lease = *table.leases.Find(*it);
    absl::StrAppend(&text, ". It holds ", lease.held, " rows ", LeaseText(lease, now));
  }
  if (leases.size() > named) absl::StrAppend(&text, ", and ", leases.size() - named, " more leases");
}

void ExplainVersions(const TableState& table, const Consumer& consumer, std::string& text) {
  const int64_t lag = consumer.options().max_version_lag;
  if (table.weights_version <= lag) return;
  absl::StrAppend(&text, ". Weights version ", table.weights_version, " is published, and it accepts rows up to ", lag,
                  " versions older: so far ", consumer.counts.sent_back, " rows were sent back and ",
                  consumer.counts.stale_dropped, " dropped");
}

}  // namespace

void ExplainGroups(const TableState& table, const Consumer& consumer, std::string& text) {
  if (!consumer.by_group()) return;
  const IdSet& incomplete = table.groups.incomplete();
  if (incomplete.size() > 0) {
    const Group& first = *table.groups.FindByLeader(incomplete.Select(0));
    absl::StrAppend(&text, ". ", incomplete.size(), " groups are incomplete, first group ", first.id, " with ",
                    first.arrived, " of ", first.size, " rows");
  }
  // Quarantined rows without a group are among these, and are named elsewhere.
  std::vector<RowId> stuck;
  consumer.stuck().First(kNamed, stuck);
  for (RowId leader : stuck) {
    const Group* const group = table.groups.FindByLeader(leader);
    if (group == nullptr) continue;
    absl::StrAppend(&text, ". ", consumer.stuck().size(), " groups cannot be taken as a whole, first group ", group->id,
                    ": of its ", group->size, " rows ", consumer.DoneOf(*group), " are done and ",
                    group->arrived - group->rows_here(), " are gone");
    return;
  }
}

void ExplainQuarantine(const Consumer& consumer, std::string& text) {
  const IdSet& quarantined = consumer.quarantined();
  if (quarantined.size() == 0) return;
  std::vector<RowId> first;
  quarantined.First(kNamed, first);
  absl::StrAppend(&text, ". ", quarantined.size(), " rows are quarantined, because their leases expired ",
                  consumer.options().max_deliveries, " times; requeue or drop them: ", absl::StrJoin(first, ", "),
                  quarantined.size() > kNamed ? ", …" : "");
}

std::string Explain(const TableState& table, uint32_t index, absl::Time now) {
  const Consumer& consumer = table.consumer(index);
  const ConsumerStatus status = consumer.status();
  std::string text = absl::StrCat("consumer '", consumer.options().name, "' of partition '", table.options.name,
                                  "' can take ", status.takeable, consumer.by_group() ? " groups" : " rows");
  ExplainWaitingRows(table, index, now, text);
  ExplainLeases(table, index, now, text);
  ExplainGroups(table, consumer, text);
  ExplainQuarantine(consumer, text);
  ExplainVersions(table, consumer, text);
  ExplainColumns(table, consumer, text);
  absl::StrAppend(&text, ". Rows: ", status.waiting, " waiting, ", status.ready, " ready, ", status.leased, " leased, ",
                  status.quarantined, " quarantined, ", status.done, " done",
                  table.sealed ? "; the partition is sealed" : "");
  return text;
}

std::string ExplainFetch(const TableState& table, const FetchRequest& request, const FetchPlan& plan, absl::Time now) {
  MissingCells missing;
  absl::flat_hash_set<RowId> seen;  // a row may be named several times
  size_t rows = 0, cells = 0;
  for (RowId row : request.rows) {
    if (!seen.insert(row).second) continue;
    if (rows < kLookedAt && cells < kCellsLookedAt) {
      const size_t of_row = AddMissing(table, row, plan.columns, now, missing);
      rows += of_row > 0 ? 1 : 0;
      cells += of_row;
    } else {
      cells += static_cast<size_t>(std::count_if(plan.columns.begin(), plan.columns.end(),
                                                 [&](uint32_t column) { return table.Lacks(row, column); }));
    }
  }
  std::string text = absl::StrCat(cells, " cells are missing");
  missing.AppendTo(text);
  return text;
}

}  // namespace tdock::dock
