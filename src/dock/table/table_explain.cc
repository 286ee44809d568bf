// What a consumer or a fetch waits for, in words.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dock/table/table.h"
#include "dock/table/table_text.h"

namespace tdock::dock {
namespace {

// A message names at most this many reasons, leases or groups, and counts the rest.
constexpr int kNamed = 10;
// At most this many rows are examined for reasons.
constexpr size_t kLookedAt = 100;

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

// Missing cells, grouped by reason.
class MissingCells {
 public:
  void Add(RowId row, const std::string& column, std::string why) {
    for (Shortage& shortage : shortages_) {
      if (shortage.column != column || shortage.why != why) continue;
      shortage.rows.push_back(row);
      return;
    }
    if (shortages_.size() < kNamed) shortages_.push_back({column, std::move(why), {row}});
  }
  void AppendTo(std::string& text) {
    for (Shortage& shortage : shortages_) {
      std::sort(shortage.rows.begin(), shortage.rows.end());
      shortage.rows.erase(std::unique(shortage.rows.begin(), shortage.rows.end()), shortage.rows.end());
      const bool one = shortage.rows.size() == 1;
      absl::StrAppend(&text, one ? ". Row " : ". Rows ", RangesOf(shortage.rows), one ? " lacks '" : " lack '",
                      shortage.column, "': ", shortage.why);
    }
  }

 private:
  struct Shortage {
    std::string column;
    std::string why;
    std::vector<RowId> rows;
  };
  std::vector<Shortage> shortages_;
};

std::string Ago(absl::Duration duration) { return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1))); }

}  // namespace

std::string Table::LeaseText(const Lease& lease, absl::Time now) const {
  std::string text = absl::StrCat("under lease ", lease.id, " for ", Ago(now - lease.at));
  if (lease.expires != absl::InfiniteFuture()) absl::StrAppend(&text, ", which ends in ", Ago(lease.expires - now));
  return text;
}

// Which consumers could write a missing cell, and why they have not.
std::string Table::WriterText(const Place& place, uint32_t column, absl::Time now) const {
  const std::vector<uint32_t>& writers = schema_[column].writers;
  if (writers.empty()) return "no registered consumer writes it";
  std::string text;
  for (uint32_t index : std::span(writers).first(std::min<size_t>(writers.size(), kNamed))) {
    const Consumer& writer = *consumers_[index];
    absl::StrAppend(&text, text.empty() ? "" : "; ", "its writer '", writer.options().name, "' ");
    const RowState state = place.state(index);
    if (state == kLeased) {
      absl::StrAppend(&text, "has held the row ", LeaseText(leases_.ByKey(place.lease(index)), now));
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
      const auto name_of = [&](uint32_t read) { return absl::string_view(schema_[read].spec.name); };
      absl::StrAppend(&text, "waits for ", Quoted(missing, name_of), " of the row");
    }
  }
  if (writers.size() > kNamed) absl::StrAppend(&text, "; and ", writers.size() - kNamed, " more consumers write it");
  return text;
}

void Table::ExplainColumns(const Consumer& consumer, std::string& text) const {
  const char* separator = ". Missing: ";
  for (uint32_t index : consumer.reads()) {
    const int64_t missing = pages_.rows() - schema_[index].ready_cells;
    if (missing == 0) continue;
    absl::StrAppend(&text, separator, "'", schema_[index].spec.name, "' of ", missing, " rows");
    separator = ", ";
  }
}

void Table::ExplainWaitingRows(uint32_t index, absl::Time now, std::string& text) const {
  const Consumer& consumer = *consumers_[index];
  std::vector<RowId> rows;
  consumer.waiting().First(kLookedAt, rows);
  MissingCells missing;
  for (RowId row : rows) {
    const Place place = pages_.At(row);
    for (uint32_t column : consumer.reads()) {
      if (place.cell(column).empty()) missing.Add(row, schema_[column].spec.name, WriterText(place, column, now));
    }
  }
  missing.AppendTo(text);
  const size_t others = consumer.waiting().size() - rows.size();
  if (others > 0) absl::StrAppend(&text, ". Not examined: ", others, " more waiting rows");
}

void Table::ExplainLeases(uint32_t index, absl::Time now, std::string& text) const {
  const absl::btree_set<LeaseId>& leases = consumers_[index]->leases;
  size_t named = 0;
  for (auto it = leases.begin(); it != leases.end() && named < kNamed; ++it, ++named) {
    const Lease& lease = *leases_.Find(*it);
    absl::StrAppend(&text, ". It holds ", lease.held, " rows ", LeaseText(lease, now));
  }
  if (leases.size() > named) absl::StrAppend(&text, ", and ", leases.size() - named, " more leases");
}

void Table::ExplainGroups(const Consumer& consumer, std::string& text) const {
  if (!consumer.by_group()) return;
  const IdSet& incomplete = groups_.incomplete();
  if (incomplete.size() > 0) {
    const Group& first = *groups_.FindByLeader(incomplete.Select(0));
    absl::StrAppend(&text, ". ", incomplete.size(), " groups are incomplete, first group ", first.id, " with ",
                    first.arrived, " of ", first.size, " rows");
  }
  // Quarantined rows without a group are among these, and are named elsewhere.
  std::vector<RowId> stuck;
  consumer.stuck().First(kNamed, stuck);
  for (RowId leader : stuck) {
    const Group* const group = groups_.FindByLeader(leader);
    if (group == nullptr) continue;
    absl::StrAppend(&text, ". ", consumer.stuck().size(), " groups cannot be taken as a whole, first group ", group->id,
                    ": of its ", group->size, " rows ", consumer.DoneOf(*group), " are done and ",
                    group->arrived - group->rows_here(), " are gone");
    return;
  }
}

void Table::ExplainQuarantine(const Consumer& consumer, std::string& text) const {
  const IdSet& quarantined = consumer.quarantined();
  if (quarantined.size() == 0) return;
  std::vector<RowId> first;
  quarantined.First(kNamed, first);
  absl::StrAppend(&text, ". ", quarantined.size(), " rows are quarantined, because their leases expired ",
                  consumer.options().max_deliveries, " times; requeue or drop them: ", absl::StrJoin(first, ", "),
                  quarantined.size() > kNamed ? ", …" : "");
}

void Table::ExplainVersions(const Consumer& consumer, std::string& text) const {
  const int64_t lag = consumer.options().max_version_lag;
  if (weights_version_ <= lag) return;
  absl::StrAppend(&text, ". Weights version ", weights_version_, " is published, and it accepts rows up to ", lag,
                  " versions older: so far ", consumer.sent_back, " rows were sent back and ", consumer.stale_dropped,
                  " dropped");
}

std::string Table::Explain(uint32_t index, absl::Time now) const {
  const Consumer& consumer = *consumers_[index];
  const ConsumerStatus status = StatusOf(index);
  std::string text =
      absl::StrCat("consumer '", consumer.options().name, "' of partition '", options_.name, "' can take ",
                   status.takeable, consumer.by_group() ? " groups" : " rows", " (", status.waiting,
                   " rows are waiting, ", status.ready, " are ready, ", status.leased, " leased, ", status.quarantined,
                   " quarantined, ", status.done, " done", sealed_ ? "; the partition is sealed)" : ")");
  ExplainColumns(consumer, text);
  ExplainWaitingRows(index, now, text);
  ExplainLeases(index, now, text);
  ExplainGroups(consumer, text);
  ExplainQuarantine(consumer, text);
  ExplainVersions(consumer, text);
  return text;
}

std::string Table::ExplainFetch(const FetchRequest& request, const FetchPlan& plan, absl::Time now) const {
  std::string text = absl::StrCat(plan.missing_cells, " cells are missing");
  MissingCells missing;
  size_t looked_at = 0;
  for (RowId row : request.rows) {
    const std::optional<Place> place = pages_.Find(row);
    bool lacking = false;
    for (uint32_t column : plan.columns) {
      if (!place.has_value() || !place->cell(column).empty()) continue;
      missing.Add(row, schema_[column].spec.name, WriterText(*place, column, now));
      lacking = true;
    }
    if (lacking && ++looked_at == kLookedAt) break;
  }
  missing.AppendTo(text);
  return text;
}

}  // namespace tdock::dock
