// What a consumer or a fetch waits for, in words.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dock/table.h"

namespace tdock {
namespace {

// A message names up to this many cells, leases or groups, and counts the rest.
constexpr int kNamed = 10;

std::string Ago(absl::Duration duration) { return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1))); }

}  // namespace

std::string Table::LeaseText(const Lease& lease, absl::Time now) const {
  std::string text = absl::StrCat("under lease ", lease.id, " for ", Ago(now - lease.at));
  if (lease.expires != absl::InfiniteFuture()) absl::StrAppend(&text, ", which ends in ", Ago(lease.expires - now));
  return text;
}

// Who could write a missing cell, and what keeps it.
std::string Table::WriterText(const Place& place, uint32_t column, absl::Time now) const {
  if (columns_[column].writers.empty()) return "no registered consumer writes it";
  std::string text;
  for (uint32_t index : columns_[column].writers) {
    const Consumer& writer = *consumers_[index];
    absl::StrAppend(&text, text.empty() ? "" : "; ", "its writer '", writer.options.name, "' ");
    const RowState state = place.state(index);
    if (state == kLeased) {
      const auto it = leases_.find(place.page->consumers[index]->leases[place.slot]);
      absl::StrAppend(&text, "has held the row ", LeaseText(it->second, now));
    } else if (state == kReady) {
      absl::StrAppend(&text, "has not taken the row");
    } else if (state == kDone) {
      absl::StrAppend(&text, "is done with the row and has not written it");
    } else {
      std::vector<std::string> missing;
      for (uint32_t read : writer.reads) {
        if (place.page->CellAt(place.slot, read).empty()) missing.push_back(columns_[read].spec.name);
      }
      absl::StrAppend(&text, "waits for '", absl::StrJoin(missing, "', '"), "' of the row");
    }
  }
  return text;
}

void Table::ExplainColumns(const Consumer& consumer, std::string& text) const {
  const char* separator = ". Missing: ";
  for (uint32_t index : consumer.reads) {
    const int64_t missing = rows_ - columns_[index].ready_cells;
    if (missing == 0) continue;
    absl::StrAppend(&text, separator, "'", columns_[index].spec.name, "' of ", missing, " rows");
    separator = ", ";
  }
}

void Table::ExplainWaitingRows(uint32_t index, absl::Time now, std::string& text) const {
  const Consumer& consumer = *consumers_[index];
  if (rows_ == consumer.ready + consumer.leased + consumer.done) return;
  int named = 0;
  bool found = false;
  for (auto it = pages_.lower_bound(consumer.waiting_from / Page::kRows); it != pages_.end() && named < kNamed; ++it) {
    Page& page = *it->second;
    for (uint64_t slot = 0; slot < Page::kRows && named < kNamed; ++slot) {
      const Place place{&page, slot};
      if (!page.Has(slot) || !IsWaiting(place.state(index))) continue;
      if (!found) consumer.waiting_from = page.first;
      found = true;
      for (uint32_t column : consumer.reads) {
        if (!page.CellAt(slot, column).empty() || named == kNamed) continue;
        absl::StrAppend(&text, ". Row ", place.row(), " lacks '", columns_[column].spec.name,
                        "': ", WriterText(place, column, now));
        ++named;
      }
    }
  }
}

void Table::ExplainLeases(uint32_t index, absl::Time now, std::string& text) const {
  int named = 0, more = 0;
  for (const auto& [key, lease] : leases_) {
    if (lease.consumer != index) continue;
    if (++named > kNamed) {
      ++more;
    } else {
      absl::StrAppend(&text, ". It holds ", lease.held, " rows ", LeaseText(lease, now));
    }
  }
  if (more > 0) absl::StrAppend(&text, ", and ", more, " more leases");
}

void Table::ExplainGroups(const Consumer& consumer, std::string& text) const {
  if (!consumer.by_group()) return;
  if (incomplete_groups_ > 0) absl::StrAppend(&text, ". ", incomplete_groups_, " groups are incomplete");
  if (consumer.dead_groups == 0) return;
  const Group* first = nullptr;
  for (const auto& [id, group] : groups_) {
    const Group::Counts& counts = group->counts[consumer.group_slot];
    if (!IsDead(consumer, *group) || counts.done == static_cast<int64_t>(group->rows.size())) continue;
    if (first == nullptr || group->leader < first->leader) first = group.get();
  }
  if (first == nullptr) return;
  absl::StrAppend(&text, ". Group ", first->id, " of ", first->size,
                  " rows cannot be taken as a whole: ", first->counts[consumer.group_slot].done,
                  " of its rows are done for it, and ", first->arrived - static_cast<int64_t>(first->rows.size()),
                  " were released");
}

std::string Table::Explain(uint32_t index, absl::Time now) const {
  const Consumer& consumer = *consumers_[index];
  const ConsumerStatus status = StatusOf(index);
  std::string text = absl::StrCat("consumer '", consumer.options.name, "' of partition '", options_.name, "' can take ",
                                  status.takeable, consumer.by_group() ? " groups" : " rows", " (", status.waiting,
                                  " rows wait, ", status.ready, " are ready, ", status.leased, " leased, ", status.done,
                                  " done", sealed_ ? "; the partition is sealed)" : ")");
  ExplainColumns(consumer, text);
  ExplainWaitingRows(index, now, text);
  ExplainLeases(index, now, text);
  ExplainGroups(consumer, text);
  return text;
}

std::string Table::ExplainFetch(const FetchRequest& request, const FetchPlan& plan, absl::Time now) const {
  std::string text = absl::StrCat(plan.missing_cells, " cells are missing");
  int named = 0;
  for (RowId row : request.rows) {
    const std::optional<Place> place = Find(row);
    for (uint32_t column : plan.columns) {
      if (!place.has_value() || !place->page->CellAt(place->slot, column).empty()) continue;
      if (++named > kNamed) return text;
      absl::StrAppend(&text, ". Row ", row, " lacks '", columns_[column].spec.name,
                      "': ", WriterText(*place, column, now));
    }
  }
  return text;
}

}  // namespace tdock
