#include "dock/service/console/verbs.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/console/dock_json.h"
#include "dock/service/console/partition_statuses.h"
#include "dock/service/console/text_table.h"

namespace tdock::console {
namespace {

constexpr TextTable::Align kRight = TextTable::Align::kRight;
constexpr size_t kMostNumbers = 1'000'000;

std::string CountOf(int64_t count, absl::string_view one) {
  return absl::StrCat(Grouped(count), " ", one, count == 1 ? "" : "s");
}

std::string ShownTags(const Tags& tags) {
  return absl::StrJoin(tags, " ", [](std::string* text, const auto& tag) {
    absl::StrAppend(text, Shown(tag.first), "=", Shown(tag.second));
  });
}

std::string ShownNames(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ", ", [](std::string* text, const auto& name) { *text += Shown(name); });
}

void WriteHead(absl::string_view name, const PartitionStatus& status, std::ostream& out) {
  out << Shown(name) << ": " << CountOf(status.rows, "row") << " in " << CountOf(status.groups, "group");
  if (status.incomplete_groups > 0) out << " (" << Grouped(status.incomplete_groups) << " incomplete)";
  out << ", " << Mebibytes(status.held_bytes) << " held";
  if (status.weights_version != kNoWeightsVersion) out << ", weights " << status.weights_version;
  out << (status.sealed ? ", sealed\n" : "\n");
  if (status.retain_for.empty()) return;
  out << "rows retained for " << ShownNames(status.retain_for) << "\n";
}

void WriteColumns(const PartitionStatus& status, std::ostream& out) {
  if (status.columns.empty()) return;
  TextTable table({{"column"}, {"type"}, {"ready cells", kRight}, {"of rows", kRight}});
  for (const ColumnStatus& column : status.columns) {
    const std::string share =
        status.rows == 0 ? "" : absl::StrCat(column.ready_cells * 100 / std::max<int64_t>(status.rows, 1), "%");
    table.Add({Shown(column.name), column.typed ? ToString(column.type) : "-", Grouped(column.ready_cells), share});
  }
  out << "\n" << table;
}

// Counters that are zero for most consumers.
std::string RareCounts(const ConsumerStatus& status) {
  std::vector<std::string> parts;
  if (status.committed_step != kNoStep) parts.push_back(absl::StrCat("committed step ", status.committed_step));
  const std::pair<int64_t, absl::string_view> counts[] = {{status.uncommitted, "uncommitted"},
                                                          {status.unfinished, "given back unfinished"},
                                                          {status.sent_back, "sent back as too old"},
                                                          {status.stale_dropped, "dropped as too old"},
                                                          {status.reset, "to be processed again"}};
  for (const auto& [count, what] : counts) {
    if (count > 0) parts.push_back(absl::StrCat(Grouped(count), " ", what));
  }
  return absl::StrJoin(parts, ", ");
}

void WriteConsumers(const PartitionStatus& status, std::ostream& out) {
  if (status.consumers.empty()) return;
  TextTable table({{"consumer"},
                   {"takeable", kRight},
                   {"waiting", kRight},
                   {"ready", kRight},
                   {"leased", kRight},
                   {"quarant.", kRight},
                   {"done", kRight},
                   {"completed", kRight},
                   {"expired", kRight}});
  std::string rare;
  for (const auto& [name, consumer] : status.consumers) {
    table.Add({Shown(name), Grouped(consumer.takeable), Grouped(consumer.waiting), Grouped(consumer.ready),
               Grouped(consumer.leased), Grouped(consumer.quarantined), Grouped(consumer.done),
               Grouped(consumer.completed), Grouped(consumer.expired)});
    if (const std::string counts = RareCounts(consumer); !counts.empty()) {
      absl::StrAppend(&rare, Shown(name), ": ", counts, "\n");
    }
  }
  out << "\n" << table << rare;
}

void WriteOverview(const std::vector<NamedPartition>& partitions, std::ostream& out) {
  if (partitions.empty()) {
    out << "no partitions\n";
    return;
  }
  TextTable table({{"partition"},
                   {"rows", kRight},
                   {"groups", kRight},
                   {"held", kRight},
                   {"weights", kRight},
                   {"columns", kRight},
                   {"consumers", kRight},
                   {"state"}});
  for (const auto& [name, status] : partitions) {
    table.Add({Shown(name), Grouped(status.rows), Grouped(status.groups), Mebibytes(status.held_bytes),
               status.weights_version == kNoWeightsVersion ? "-" : absl::StrCat(status.weights_version),
               absl::StrCat(status.columns.size()), absl::StrCat(status.consumers.size()),
               status.sealed ? "sealed" : "open"});
  }
  out << table;
}

void WriteCells(const RowStatus& row, std::ostream& out) {
  if (row.cells.empty()) return;
  TextTable table({{"column"}, {"state"}, {"bytes", kRight}, {"weights", kRight}, {"put by"}});
  for (const RowCellStatus& cell : row.cells) {
    table.Add({Shown(cell.column), std::string(CellStateName(cell.state)),
               cell.state == CellState::kEmpty ? "-" : Grouped(cell.bytes),
               cell.weights_version == kNoWeightsVersion ? "-" : absl::StrCat(cell.weights_version),
               cell.writer.empty() ? "-" : Shown(cell.writer)});
  }
  out << "\n" << table;
}

// Details of a row's state for a consumer.
std::string Details(const RowConsumerStatus& consumer, absl::Time now) {
  if (consumer.state == DeliveryState::kLeased) {
    return absl::StrCat("lease ", consumer.lease, " for ", Roughly(now - consumer.taken), ", ends ",
                        consumer.expires == absl::InfiniteFuture() ? "" : "in ", Roughly(consumer.expires - now));
  }
  if (!consumer.missing.empty()) return absl::StrCat("lacks ", ShownNames(consumer.missing));
  if (consumer.uncommitted_step != kNoStep) return absl::StrCat("step ", consumer.uncommitted_step, ", uncommitted");
  return "";
}

void WriteDeliveries(const RowStatus& row, absl::Time now, std::ostream& out) {
  if (row.consumers.empty()) return;
  TextTable table({{"consumer"}, {"state"}, {"redelivered", kRight}, {"details"}});
  for (const RowConsumerStatus& consumer : row.consumers) {
    table.Add({Shown(consumer.consumer), std::string(DeliveryStateName(consumer.state)),
               absl::StrCat(consumer.redeliveries), Details(consumer, now)});
  }
  out << "\n" << table;
}

absl::Status PrintPartition(Dock& dock, const StatusOptions& options, std::ostream& out) {
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock.GetStatus(options.partition));
  if (options.json) {
    Write(ToJson(options.partition, status), out);
    return absl::OkStatus();
  }
  WriteHead(options.partition, status, out);
  WriteColumns(status, out);
  WriteConsumers(status, out);
  return absl::OkStatus();
}

// Lists up to the requested number of rows, over as many pages as needed.
absl::StatusOr<ListResult> ListAll(Dock& dock, ListRequest request) {
  ListResult all;
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(ListResult page, dock.List(request));
    std::move(page.rows.begin(), page.rows.end(), std::back_inserter(all.rows));
    all.next = page.next;
    request.limit -= static_cast<int64_t>(page.rows.size());
    if (!page.next || request.limit <= 0) return all;
    request.from = *page.next;
  }
}

absl::StatusOr<uint64_t> ParseNumber(absl::string_view what, absl::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": '", EscapeForMessage(text), "' is not a number; give numbers and ranges, such as 3,7-9"));
  }
  return number;
}

}  // namespace

absl::Status PrintStatus(Dock& dock, const StatusOptions& options, std::ostream& out) {
  if (!options.partition.empty()) return PrintPartition(dock, options, out);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<NamedPartition> partitions, GetPartitionStatuses(dock));
  if (!options.json) {
    WriteOverview(partitions, out);
    return absl::OkStatus();
  }
  Json list = Json::array();
  for (const auto& [name, status] : partitions) list.push_back(ToJson(name, status));
  Write({{"partitions", std::move(list)}}, out);
  return absl::OkStatus();
}

absl::Status PrintExplanation(Dock& dock, const ExplainOptions& options, std::ostream& out) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, dock.Explain(options.partition, options.consumer));
  if (options.json) {
    Write({{"partition", options.partition}, {"consumer", options.consumer}, {"explanation", text}}, out);
  } else {
    out << Wrapped(text) << "\n";
  }
  return absl::OkStatus();
}

absl::Status PrintRow(Dock& dock, const RowOptions& options, std::ostream& out) {
  TDOCK_ASSIGN_OR_RETURN(const RowStatus row, dock.GetRowStatus(options.partition, options.row));
  const absl::Time now = options.clock.Now();
  if (options.json) {
    Write(ToJson(row, now), out);
    return absl::OkStatus();
  }
  out << "row " << row.row << " of " << Shown(options.partition) << ": "
      << (row.group == kNoGroup ? "no group" : absl::StrCat("group ", row.group)) << ", age " << row.age << ", epoch "
      << row.epoch << "\n";
  if (!row.key.empty()) out << "key " << Shown(row.key) << "\n";
  if (!row.tags.empty()) out << "tags " << ShownTags(row.tags) << "\n";
  WriteCells(row, out);
  WriteDeliveries(row, now, out);
  return absl::OkStatus();
}

absl::Status PrintList(Dock& dock, const ListOptions& options, std::ostream& out) {
  TDOCK_ASSIGN_OR_RETURN(const ListResult found, ListAll(dock, options.request));
  if (options.json) {
    Json rows = Json::array();
    for (const ListedRow& row : found.rows) rows.push_back(ToJson(row));
    Write({{"rows", std::move(rows)}, {"next", found.next ? Json(*found.next) : Json(nullptr)}}, out);
    return absl::OkStatus();
  }
  if (found.rows.empty()) {
    out << "no rows\n";
    return absl::OkStatus();
  }
  TextTable table({{"row", kRight}, {"group", kRight}, {"age", kRight}, {"epoch", kRight}, {"key"}, {"tags"}});
  for (const ListedRow& row : found.rows) {
    table.Add({absl::StrCat(row.row), row.group == kNoGroup ? "-" : absl::StrCat(row.group), absl::StrCat(row.age),
               absl::StrCat(row.epoch), row.key.empty() ? "-" : Shown(row.key), ShownTags(row.tags)});
  }
  out << table;
  if (found.next) out << "there may be more rows: use --from " << *found.next << "\n";
  return absl::OkStatus();
}

absl::Status ClearRows(Dock& dock, const ClearOptions& options, std::ostream& out) {
  const ClearRequest& request = options.request;
  if (request.everything && !options.yes) {
    TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock.GetStatus(request.partition));
    return absl::InvalidArgumentError(absl::StrCat("--everything would remove all ", CountOf(status.rows, "row"),
                                                   " of '", EscapeForMessage(request.partition),
                                                   "' and unseal it; add --yes to do so"));
  }
  TDOCK_ASSIGN_OR_RETURN(const int64_t cleared, dock.Clear(request));
  if (options.json) {
    Write({{"partition", request.partition}, {"cleared", cleared}}, out);
  } else {
    out << "removed " << CountOf(cleared, "row") << " of " << Shown(request.partition) << "\n";
  }
  return absl::OkStatus();
}

absl::Status DropPartition(Dock& dock, const DropOptions& options, std::ostream& out) {
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock.GetStatus(options.partition));
  if (!options.yes) {
    return absl::InvalidArgumentError(absl::StrCat("this would remove '", EscapeForMessage(options.partition),
                                                   "' with ", CountOf(status.rows, "row"), " and ",
                                                   CountOf(static_cast<int64_t>(status.consumers.size()), "consumer"),
                                                   ", for everyone who works on it; add --yes to do so"));
  }
  TDOCK_RETURN_IF_ERROR(dock.DropPartition(options.partition));
  if (options.json) {
    Write({{"partition", options.partition}, {"rows", status.rows}}, out);
  } else {
    out << "removed " << Shown(options.partition) << " with " << CountOf(status.rows, "row") << "\n";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> ParseNumbers(absl::string_view what, const std::vector<std::string>& lists) {
  std::vector<uint64_t> numbers;
  for (const std::string& list : lists) {
    for (absl::string_view part : absl::StrSplit(list, ',')) {
      const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
      TDOCK_ASSIGN_OR_RETURN(const uint64_t first, ParseNumber(what, ends.first));
      uint64_t last = first;
      if (part.size() > ends.first.size()) {
        TDOCK_ASSIGN_OR_RETURN(last, ParseNumber(what, ends.second));
      }
      if (last < first) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, ": the range '", EscapeForMessage(part), "' ends before it begins"));
      }
      if (last - first >= kMostNumbers - numbers.size()) {
        return absl::InvalidArgumentError(absl::StrCat(what, ": more than ", Grouped(kMostNumbers), " numbers"));
      }
      for (uint64_t i = 0; i <= last - first; ++i) numbers.push_back(first + i);
    }
  }
  return numbers;
}

absl::StatusOr<Tags> ParseTags(absl::string_view what, const std::vector<std::string>& pairs) {
  Tags tags;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": '", EscapeForMessage(pair), "' is not a tag; give name=value, such as split=train"));
    }
    if (!tags.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": '", EscapeForMessage(pair.substr(0, equals)), "' is given twice"));
    }
  }
  return tags;
}

}  // namespace tdock::console
