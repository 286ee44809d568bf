// What is allowed, and what to hand out: the decisions of a table.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rng.h"
#include "base/status.h"
#include "dock/name.h"
#include "dock/table.h"

namespace tdock {
namespace {

constexpr int64_t kMaxRowsPerPut = int64_t{1} << 24;

bool AnyTwice(std::span<const RowId> rows) {
  if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end()) return false;
  std::vector<RowId> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

std::string Quoted(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrCat("'", absl::StrJoin(names, "', '"), "'");
}

// `count` of the ranks below `size`, each with the same chance, in random order.
std::vector<int64_t> DrawRanks(int64_t count, int64_t size, Rng& rng) {
  std::vector<int64_t> ranks;
  ranks.reserve(static_cast<size_t>(count));
  // Fisher and Yates over 0, 1, …, size − 1, of which only the places that were swapped are written down.
  absl::flat_hash_map<int64_t, int64_t> swapped;
  const auto at = [&](int64_t place) {
    const auto it = swapped.find(place);
    return it == swapped.end() ? place : it->second;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t chosen = i + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(size - i)));
    ranks.push_back(at(chosen));
    swapped[chosen] = at(i);
  }
  return ranks;
}

}  // namespace

// ---- Finding things.

std::optional<Table::Place> Table::Find(RowId row) const {
  if (last_page_ == nullptr || row - last_page_->first >= Page::kRows) {
    const auto it = pages_.find(row / Page::kRows);
    if (it == pages_.end()) return std::nullopt;
    last_page_ = it->second.get();
  }
  const uint64_t slot = row - last_page_->first;
  if (!last_page_->Has(slot)) return std::nullopt;
  return Place{last_page_, slot};
}

absl::StatusOr<Table::Place> Table::FindOrError(RowId row) const {
  const std::optional<Place> place = Find(row);
  if (place.has_value()) return *place;
  return absl::NotFoundError(row < next_row_
                                 ? absl::StrCat("row ", row, " is gone: it was cleared, or released after its last use")
                                 : absl::StrCat("there is no row ", row));
}

absl::StatusOr<uint32_t> Table::FindConsumer(absl::string_view name) const {
  const auto it = consumer_by_name_.find(name);
  if (it != consumer_by_name_.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& consumer : consumers_) names.push_back(consumer->options.name);
  return absl::NotFoundError(
      absl::StrCat("partition '", options_.name, "' has no consumer '", name, "'; it has ", Quoted(names)));
}

absl::StatusOr<uint32_t> Table::FindColumn(absl::string_view name, uint32_t guess) const {
  if (guess < columns_.size() && columns_[guess].spec.name == name) return guess;
  const auto it = column_by_name_.find(name);
  if (it != column_by_name_.end()) return it->second;
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.spec.name);
  return absl::NotFoundError(
      absl::StrCat("partition '", options_.name, "' has no column '", name, "'; it has ", Quoted(names)));
}

uint32_t Table::ColumnIndex(absl::string_view name) const { return column_by_name_.find(name)->second; }

// ---- Consumers.

absl::Status Table::CheckColumnNames(const std::vector<std::string>& names, absl::string_view what) const {
  for (size_t i = 0; i < names.size(); ++i) {
    TDOCK_RETURN_IF_ERROR(CheckName("column", names[i]));
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " names column '", names[i], "' twice"));
    }
    if (!options_.growing) TDOCK_RETURN_IF_ERROR(FindColumn(names[i], 0).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Table::CheckConsumer(const ConsumerOptions& options) const {
  TDOCK_RETURN_IF_ERROR(CheckName("consumer", options.name));
  const std::string who = absl::StrCat("consumer '", options.name, "'");
  const auto it = consumer_by_name_.find(options.name);
  if (it != consumer_by_name_.end()) {
    const ConsumerOptions& old = consumers_[it->second]->options;
    std::vector<absl::string_view> differences;
    if (old.reads != options.reads) differences.push_back("reads");
    if (old.writes != options.writes) differences.push_back("writes");
    if (old.unit != options.unit) differences.push_back("unit");
    if (old.sampler != options.sampler) differences.push_back("sampler");
    if (old.seed != options.seed) differences.push_back("seed");
    if (old.lease_duration != options.lease_duration) differences.push_back("lease_duration");
    if (differences.empty()) return false;
    return absl::AlreadyExistsError(absl::StrCat(who, " is registered with other ", absl::StrJoin(differences, ", "),
                                                 "; it reads ", Quoted(old.reads), " and writes ", Quoted(old.writes)));
  }
  if (options.reads.size() > kMaxReads) {
    return absl::InvalidArgumentError(absl::StrCat(who, " reads ", options.reads.size(), " columns; at most ",
                                                   static_cast<int>(kMaxReads), " are possible"));
  }
  if (options.unit > Unit::kGroup || options.sampler > Sampler::kUniform) {
    return absl::InvalidArgumentError(absl::StrCat(who, " has an unknown unit or sampler"));
  }
  if (options.lease_duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has a lease_duration of ", absl::FormatDuration(options.lease_duration)));
  }
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(options.reads, "reads"), who));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(options.writes, "writes"), who));
  return true;
}

// ---- Put.

absl::StatusOr<std::vector<uint32_t>> Table::CheckPut(const PutRequest& request) const {
  const Batch& batch = request.batch;
  if (batch.rows() == 0) return absl::InvalidArgumentError("the batch has no rows");
  if (batch.rows() > kMaxRowsPerPut) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", batch.rows(), " rows; at most ", kMaxRowsPerPut, " fit one put"));
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> columns, CheckColumns(request));
  if (request.rows.empty()) {
    TDOCK_RETURN_IF_ERROR(CheckNewRows(request));
  } else {
    TDOCK_RETURN_IF_ERROR(CheckRowsOfPut(request, columns));
  }
  return columns;
}

absl::StatusOr<std::vector<uint32_t>> Table::CheckColumns(const PutRequest& request) const {
  std::vector<uint32_t> columns;
  columns.reserve(request.batch.columns().size());
  uint32_t guess = 0;
  for (const NamedColumn& given : request.batch.columns()) {
    absl::StatusOr<uint32_t> index = FindColumn(given.name, guess);
    if (!index.ok()) {
      if (!options_.growing) return std::move(index).status();
      TDOCK_RETURN_IF_ERROR(CheckName("column", given.name));
      index = kNewColumn;
    } else if (const Column& column = columns_[*index]; column.typed && column.spec.type != given.column.type()) {
      return absl::InvalidArgumentError(absl::StrCat("column '", given.name, "' holds ", ToString(column.spec.type),
                                                     "; given ", ToString(given.column.type())));
    }
    columns.push_back(*index);
    guess = *index + 1;
  }
  return columns;
}

absl::Status Table::CheckNewRows(const PutRequest& request) const {
  if (request.lease != kNoLease) {
    return absl::InvalidArgumentError(
        absl::StrCat("a put under lease ", request.lease, " must name the rows that it fills"));
  }
  if (sealed_) return absl::FailedPreconditionError(absl::StrCat("partition '", options_.name, "' is sealed"));
  return CheckGroups(request);
}

absl::Status Table::CheckGroups(const PutRequest& request) const {
  const std::vector<GroupId>& groups = request.groups;
  if (request.group_size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("group_size is ", request.group_size));
  }
  const int64_t new_size = GroupSizeFor(request);
  if (groups.empty()) {
    if (new_size == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("groups have ", new_size, " rows here; name the group of each row"));
  }
  if (static_cast<int64_t>(groups.size()) != request.batch.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat(groups.size(), " groups for ", request.batch.rows(), " rows; give one for each row"));
  }
  absl::flat_hash_map<GroupId, int64_t> given;
  for (size_t i = 0; i < groups.size();) {
    size_t end = i + 1;
    while (end < groups.size() && groups[end] == groups[i]) ++end;
    given[groups[i]] += static_cast<int64_t>(end - i);
    i = end;
  }
  for (const auto& [id, count] : given) {
    if (id == kNoGroup) return absl::InvalidArgumentError(absl::StrCat("no group may be called ", id));
    const auto it = groups_.find(id);
    const int64_t size = it == groups_.end() ? new_size : it->second->size;
    const int64_t arrived = it == groups_.end() ? 0 : it->second->arrived;
    if (request.group_size > 0 && request.group_size != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", id, " was started with ", size, " rows; given group_size ", request.group_size));
    }
    if (count > size - arrived) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", id, " takes ", size, " rows and has ", arrived, "; given ", count, " more"));
    }
  }
  return absl::OkStatus();
}

absl::Status Table::CheckRowsOfPut(const PutRequest& request, std::span<const uint32_t> columns) const {
  const std::vector<RowId>& rows = request.rows;
  if (static_cast<int64_t>(rows.size()) != request.batch.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", request.batch.rows(), " rows; given ", rows.size(), " row ids"));
  }
  if (AnyTwice(rows)) return absl::InvalidArgumentError("a put names a row twice");
  if (!request.groups.empty() || request.group_size != 0) {
    return absl::InvalidArgumentError("groups are for new rows; the rows of this put have theirs already");
  }
  if (request.keep && request.lease == kNoLease) return absl::InvalidArgumentError("keep without a lease");
  if (request.lease != kNoLease) TDOCK_RETURN_IF_ERROR(CheckLeaseOfPut(request, columns));
  for (RowId row : rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
    if (request.overwrite) continue;
    for (uint32_t column : columns) {
      if (column == kNewColumn || place.page->CellAt(place.slot, column).empty()) continue;
      return absl::AlreadyExistsError(absl::StrCat("column '", columns_[column].spec.name, "' of row ", row,
                                                   " is there already; overwrite replaces it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Table::CheckLeaseOfPut(const PutRequest& request, std::span<const uint32_t> columns) const {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(request.lease));
  const Consumer& consumer = *consumers_[lease->consumer];
  for (size_t i = 0; i < columns.size(); ++i) {
    if (std::find(consumer.writes.begin(), consumer.writes.end(), columns[i]) != consumer.writes.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("consumer '", consumer.options.name, "' does not write column '",
                                                   request.batch.columns()[i].name, "'; it writes ",
                                                   Quoted(consumer.options.writes)));
  }
  return CheckLease({.partition = {}, .lease = request.lease, .rows = request.rows}).status();
}

// ---- Leases.

absl::StatusOr<const Table::Lease*> Table::FindLease(LeaseId lease) const {
  const auto it = leases_.find(LeaseKey(lease));
  if (it != leases_.end() && it->second.id == lease) return &it->second;
  if (lease == kNoLease || lease > last_lease_) {
    return absl::NotFoundError(absl::StrCat("partition '", options_.name, "' has no lease ", lease));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("lease ", lease, " is over: it expired, or its rows are all completed, released or cleared"));
}

bool Table::Holds(const Lease& lease, const Place& place) const {
  return place.state(lease.consumer) == kLeased && place.lease(lease.consumer) == LeaseKey(lease.id);
}

absl::StatusOr<std::vector<RowId>> Table::CheckLease(const LeaseRequest& request) const {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(request.lease));
  std::vector<RowId> rows;
  if (request.rows.empty()) {
    for (RowId row : lease->rows) {
      const std::optional<Place> place = Find(row);
      if (place.has_value() && Holds(*lease, *place)) rows.push_back(row);
    }
    return rows;
  }
  if (AnyTwice(request.rows)) return absl::InvalidArgumentError("a row is named twice");
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
    if (!Holds(*lease, place)) {
      return absl::FailedPreconditionError(absl::StrCat("row ", row, " is not held by lease ", lease->id,
                                                        " of consumer '", consumers_[lease->consumer]->options.name,
                                                        "'"));
    }
    rows.push_back(row);
  }
  return rows;
}

LeaseId Table::NextLease() const {
  LeaseId lease = last_lease_ + 1;
  while (leases_.contains(LeaseKey(lease)) || LeaseKey(lease) == 0) ++lease;
  return lease;
}

std::optional<LeaseId> Table::NextExpired(absl::Time now) const {
  if (expiries_.empty() || expiries_.begin()->first > now) return std::nullopt;
  return expiries_.begin()->second;
}

absl::Time Table::NextExpiry() const { return expiries_.empty() ? absl::InfiniteFuture() : expiries_.begin()->first; }

// ---- Take.

int64_t Table::MayStillCome(const Consumer& consumer) const {
  if (!consumer.by_group()) return rows_ - consumer.done;
  return static_cast<int64_t>(groups_.size()) - consumer.dead_groups + lone_rows_ - consumer.lone_done;
}

absl::StatusOr<int64_t> Table::LeastToTake(uint32_t index, int64_t min) const {
  if (!sealed_) return min;
  const Consumer& consumer = *consumers_[index];
  if (consumer.done == rows_) {
    return absl::OutOfRangeError(absl::StrCat("partition '", options_.name,
                                              "' is sealed, and all its rows are done for consumer '",
                                              consumer.options.name, "'"));
  }
  const int64_t possible = MayStillCome(consumer);
  if (possible > 0) return std::min(min, possible);
  if (consumer.leased > 0) return 1;
  std::string text =
      absl::StrCat("consumer '", consumer.options.name, "' can take nothing more, though not all rows are done");
  ExplainGroups(consumer, text);
  return absl::FailedPreconditionError(text);
}

std::vector<RowId> Table::Choose(uint32_t index, int64_t max) const {
  const Consumer& consumer = *consumers_[index];
  const int64_t count = std::min(max, consumer.takeable.size());
  std::vector<RowId> units;
  units.reserve(static_cast<size_t>(count));
  if (consumer.options.sampler == Sampler::kFirstCome) {
    consumer.takeable.First(count, units);
  } else {
    Rng rng(DeriveSeed(consumer.options.seed, consumer.takes));
    for (int64_t rank : DrawRanks(count, consumer.takeable.size(), rng)) {
      units.push_back(consumer.takeable.Select(rank));
    }
  }
  if (!consumer.by_group() || groups_.empty()) return units;
  std::vector<RowId> rows;
  for (RowId unit : units) {
    const auto it = group_by_leader_.find(unit);
    if (it == group_by_leader_.end()) {
      rows.push_back(unit);
    } else {
      rows.insert(rows.end(), it->second->rows.begin(), it->second->rows.end());
    }
  }
  return rows;
}

// ---- Fetch, seal, clear.

absl::StatusOr<Table::FetchPlan> Table::CheckFetch(const FetchRequest& request) const {
  if (request.rows.empty()) return absl::InvalidArgumentError("a fetch names no rows");
  if (request.columns.empty()) return absl::InvalidArgumentError("a fetch names no columns");
  FetchPlan plan;
  for (const std::string& name : request.columns) {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t column, FindColumn(name, 0));
    if (std::find(plan.columns.begin(), plan.columns.end(), column) != plan.columns.end()) {
      return absl::InvalidArgumentError(absl::StrCat("a fetch names column '", name, "' twice"));
    }
    plan.columns.push_back(column);
  }
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
    for (uint32_t column : plan.columns) plan.missing_cells += place.page->CellAt(place.slot, column).empty();
  }
  return plan;
}

absl::Status Table::CheckSeal() const {
  if (incomplete_groups_.size() == 0) return absl::OkStatus();
  const Group& first = *group_by_leader_.at(incomplete_groups_.Select(0));
  return absl::FailedPreconditionError(absl::StrCat(
      "partition '", options_.name, "' cannot be sealed: ", incomplete_groups_.size(),
      " groups are incomplete, first group ", first.id, " with ", first.arrived, " of ", first.size, " rows"));
}

absl::StatusOr<std::vector<RowId>> Table::CheckClear(const ClearRequest& request) const {
  if (!request.rows.empty() + !request.groups.empty() + request.everything != 1) {
    return absl::InvalidArgumentError("clear either rows, or groups, or everything");
  }
  std::vector<RowId> rows;
  for (RowId row : request.rows) TDOCK_RETURN_IF_ERROR(FindOrError(row).status());
  if (AnyTwice(request.rows)) return absl::InvalidArgumentError("a row is named twice");
  for (GroupId id : request.groups) {
    const auto it = groups_.find(id);
    if (it == groups_.end()) {
      return absl::NotFoundError(absl::StrCat("partition '", options_.name, "' has no group ", id));
    }
    rows.insert(rows.end(), it->second->rows.begin(), it->second->rows.end());
  }
  if (AnyTwice(rows)) return absl::InvalidArgumentError("a group is named twice");
  if (!request.rows.empty()) return request.rows;
  if (!request.everything) return rows;
  for (const uint64_t number : page_order_) {
    const Page& page = *pages_.at(number);
    for (uint64_t slot = 0; slot < Page::kRows; ++slot) {
      if (page.Has(slot)) rows.push_back(page.first + slot);
    }
  }
  return rows;
}

}  // namespace tdock
