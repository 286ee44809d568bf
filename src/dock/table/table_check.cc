// What is allowed: the decisions of a table about requests.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/table/decisions.h"
#include "dock/table/limits.h"
#include "dock/table/name.h"
#include "dock/table/table_text.h"

namespace tdock::dock {
namespace {

// A listing examines at most this many rows under the lock.
constexpr int64_t kMaxListedRows = 1 << 15;
// A page ends after so many bytes of keys and tags, so that it fits a message.
constexpr size_t kMaxListedBytes = size_t{8} << 20;
constexpr int32_t kMaxRanks = 1 << 16;

size_t BytesOf(const Labels::Label& label) {
  size_t bytes = label.key.size();
  if (label.tags == nullptr) return bytes;
  for (const auto& [name, value] : *label.tags) bytes += name.size() + value.size();
  return bytes;
}

absl::Status CheckColumnNames(const TableState& table, const std::vector<std::string>& names, absl::string_view what) {
  if (names.size() > kMaxColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " names ", names.size(), " columns; a partition has at most ", kMaxColumns));
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& name : names) {
    TDOCK_RETURN_IF_ERROR(CheckName("column", name));
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(what, " names column '", name, "' twice"));
    }
    if (!table.options.growing) TDOCK_RETURN_IF_ERROR(FindColumn(table, name, 0).status());
  }
  return absl::OkStatus();
}

absl::Status CheckSampler(const TableState& table, const ConsumerOptions& options) {
  if (options.sampler > Sampler::kCustom) return absl::InvalidArgumentError("unknown sampler");
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("ranks is ", options.ranks, "; 1 to ", kMaxRanks, " are possible"));
  }
  if ((options.sampler == Sampler::kCustom) == options.custom_sampler.empty()) {
    return absl::InvalidArgumentError(
        "custom_sampler must name the sampler if sampler is kCustom, and be empty otherwise");
  }
  if (options.length_column.empty()) {
    if (options.sampler != Sampler::kLengthBalanced) return absl::OkStatus();
    return absl::InvalidArgumentError("a sampler that balances lengths needs a length_column");
  }
  if (std::find(options.reads.begin(), options.reads.end(), options.length_column) == options.reads.end()) {
    return absl::InvalidArgumentError(absl::StrCat("length_column '", EscapeForMessage(options.length_column),
                                                   "' is not among its reads; these are ", Quoted(options.reads)));
  }
  const uint32_t column = table.schema.Find(options.length_column);
  if (column == Schema::kNone || !table.schema[column].typed) return absl::OkStatus();
  if (table.schema[column].spec.type.kind != ColumnKind::kDense) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("length_column '", options.length_column, "' holds ",
                                                 ToString(table.schema[column].spec.type),
                                                 ": all its rows have the same length"));
}

absl::StatusOr<uint32_t> FindCheckpointed(const TableState& table, const StepRequest& request) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(table, request.consumer));
  if (!table.consumer(index).options().checkpointed) {
    return absl::InvalidArgumentError(absl::StrCat("consumer '", request.consumer, "' is not checkpointed"));
  }
  if (request.step >= kNoStep) return index;
  return absl::InvalidArgumentError(absl::StrCat("there is no step ", request.step, "; steps are numbered from 0 on"));
}

}  // namespace

// ---- Lookups.

absl::StatusOr<Place> FindOrError(const TableState& table, RowId row) {
  const std::optional<Place> place = table.pages.Find(row);
  if (place.has_value()) return *place;
  return absl::NotFoundError(
      row < table.pages.next_row()
          ? absl::StrCat("row ", row, " is gone: it was cleared, dropped, or released after its last use")
          : absl::StrCat("there is no row ", row));
}

absl::Status CheckRows(const TableState& table, const std::vector<RowId>& rows) {
  if (AnyTwice(rows)) return absl::InvalidArgumentError("a row is named twice");
  for (RowId row : rows) TDOCK_RETURN_IF_ERROR(FindOrError(table, row).status());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> FindConsumer(const TableState& table, absl::string_view name) {
  const auto it = table.consumer_by_name.find(name);
  if (it != table.consumer_by_name.end()) return it->second;
  const auto name_of = [&](uint32_t index) { return absl::string_view(table.consumer(index).options().name); };
  return absl::NotFoundError(absl::StrCat("partition '", table.options.name, "' has no consumer '",
                                          EscapeForMessage(name), "'; it has ", Quoted(table.registered, name_of)));
}

absl::StatusOr<uint32_t> FindColumn(const TableState& table, absl::string_view name, uint32_t guess) {
  const uint32_t found = table.schema.Find(name, guess);
  if (found != Schema::kNone) return found;
  const auto name_of = [](const Schema::Column& column) { return absl::string_view(column.spec.name); };
  return absl::NotFoundError(absl::StrCat("partition '", table.options.name, "' has no column '",
                                          EscapeForMessage(name), "'; it has ", Quoted(table.schema, name_of)));
}

absl::Status CheckRoomForColumns(const TableState& table, size_t more) {
  if (table.schema.size() + more <= kMaxColumns) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("partition '", table.options.name, "' has ", table.schema.size(),
                                                   " columns, and would get ", more, " more; it may have ",
                                                   kMaxColumns));
}

absl::StatusOr<bool> CheckConsumer(const TableState& table, const ConsumerOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckName("consumer", options.name));
  const std::string who = absl::StrCat("consumer '", options.name, "'");
  const auto it = table.consumer_by_name.find(options.name);
  if (it != table.consumer_by_name.end()) {
    const ConsumerOptions& old = table.consumer(it->second).options();
    const std::string differences = Differences(old, options);
    if (differences.empty()) return false;
    return absl::AlreadyExistsError(absl::StrCat(who, " is registered with different ", differences, "; it reads ",
                                                 Quoted(old.reads), " and writes ", Quoted(old.writes)));
  }
  if (options.reads.size() > kMaxReads) {
    return absl::InvalidArgumentError(absl::StrCat(who, " reads ", options.reads.size(), " columns; at most ",
                                                   static_cast<int>(kMaxReads), " are possible"));
  }
  if (options.unit > Unit::kGroup) return absl::InvalidArgumentError(absl::StrCat(who, " has an unknown unit"));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckSampler(table, options), who));
  if (options.lease_duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has a lease_duration of ", absl::FormatDuration(options.lease_duration)));
  }
  if (options.max_version_lag < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has max_version_lag of ", options.max_version_lag, "; it must be at least 0"));
  }
  if (options.max_deliveries < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has max_deliveries of ", options.max_deliveries, "; it must be at least 1"));
  }
  if (options.at_most_once && options.checkpointed) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " is checkpointed and at_most_once; rows that are done at once cannot be rolled back"));
  }
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(table, options.reads, "reads"), who));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(table, options.reads_optional, "reads_optional"), who));
  const absl::flat_hash_set<absl::string_view> reads(options.reads.begin(), options.reads.end());
  for (const std::string& name : options.reads_optional) {
    if (!reads.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(who, " reads column '", name, "' and also has it as optional"));
  }
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(table, options.writes, "writes"), who));
  absl::flat_hash_set<absl::string_view> added;
  for (const auto* names : {&options.reads, &options.reads_optional, &options.writes}) {
    for (const std::string& name : *names) {
      if (table.schema.Find(name) == Schema::kNone) added.insert(name);
    }
  }
  TDOCK_RETURN_IF_ERROR(Annotate(CheckRoomForColumns(table, added.size()), who));
  if (table.registered.size() < kMaxConsumers) return true;
  return absl::ResourceExhaustedError(absl::StrCat("partition '", table.options.name, "' has ", kMaxConsumers,
                                                   " consumers, the limit: drop one before ", who, " is registered"));
}

absl::Status CheckDropConsumer(const TableState& table, absl::string_view name) {
  const bool retains = std::any_of(table.retainers.begin(), table.retainers.end(),
                                   [&](const TableState::Retainer& retainer) { return retainer.name == name; });
  return retains ? absl::OkStatus() : FindConsumer(table, name).status();
}

// ---- Leases.

absl::StatusOr<const Lease*> FindLease(const TableState& table, LeaseId lease) {
  const Lease* const found = table.leases.Find(lease);
  if (found != nullptr) return found;
  if (lease == kNoLease || lease > table.leases.last()) {
    return absl::NotFoundError(absl::StrCat("partition '", table.options.name, "' has no lease ", lease));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "lease ", lease, " is over: it expired, its consumer was dropped or rolled back, or its rows are all ",
      "completed, released, dropped, sent back or cleared"));
}

absl::StatusOr<std::vector<RowId>> CheckLease(const TableState& table, const LeaseRequest& request) {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(table, request.lease));
  if (request.rows.empty()) return table.HeldRows(*lease);
  if (AnyTwice(request.rows)) return absl::InvalidArgumentError("a row is named twice");
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(table, row));
    if (!table.Holds(*lease, place)) {
      return absl::FailedPreconditionError(absl::StrCat("row ", row, " is not held by lease ", lease->id,
                                                        " of consumer '",
                                                        table.consumer(lease->consumer).options().name, "'"));
    }
  }
  return request.rows;
}

absl::Status CheckStep(const TableState& table, LeaseId lease, int64_t step) {
  TDOCK_ASSIGN_OR_RETURN(const Lease* found, FindLease(table, lease));
  const Consumer& consumer = table.consumer(found->consumer);
  if (!consumer.options().checkpointed) {
    if (step == kNoStep) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("consumer '", consumer.options().name, "' is not checkpointed: give no step"));
  }
  if (step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("consumer '", consumer.options().name,
                                                   "' is checkpointed: give the step that completes the rows"));
  }
  if (step > consumer.counts.committed_step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("consumer '", consumer.options().name, "' has committed step ",
                                                    consumer.counts.committed_step,
                                                    "; rows cannot be completed under step ", step));
}

absl::StatusOr<uint32_t> CheckCommit(const TableState& table, const StepRequest& request) {
  if (request.weights_version == kNoWeightsVersion) return FindCheckpointed(table, request);
  return absl::InvalidArgumentError(
      absl::StrCat("weights version ", request.weights_version, " is given to a commit; it is for rollbacks only"));
}

absl::StatusOr<uint32_t> CheckRollback(const TableState& table, const StepRequest& request) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindCheckpointed(table, request));
  const int64_t committed = table.consumer(index).counts.committed_step;
  if (request.weights_version < kNoWeightsVersion) {
    return absl::InvalidArgumentError(absl::StrCat("weights version ", request.weights_version, " is negative"));
  }
  if (table.weights_version != kNoWeightsVersion && request.weights_version > table.weights_version) {
    return absl::FailedPreconditionError(absl::StrCat("weights version ", request.weights_version,
                                                      " is not an earlier one: ", table.weights_version,
                                                      " is published"));
  }
  if (request.step >= committed) return index;
  return absl::FailedPreconditionError(absl::StrCat("consumer '", request.consumer, "' has committed step ", committed,
                                                    "; it cannot roll back to step ", request.step));
}

absl::StatusOr<std::vector<RowId>> CheckDrop(const TableState& table, const LeaseRequest& request) {
  if (request.lease != kNoLease) return CheckLease(table, request);
  if (request.rows.empty()) return absl::InvalidArgumentError("without a lease, name the rows to drop");
  TDOCK_RETURN_IF_ERROR(CheckRows(table, request.rows));
  return request.rows;
}

absl::StatusOr<std::vector<RowId>> CheckRequeue(const TableState& table, const RequeueRequest& request) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(table, request.consumer));
  const IdSet& quarantined = table.consumer(index).quarantined();
  if (request.rows.empty()) {
    std::vector<RowId> rows;
    quarantined.First(quarantined.size(), rows);
    return rows;
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(table, request.rows));
  for (RowId row : request.rows) {
    if (quarantined.Contains(row)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("row ", row, " is not quarantined for consumer '", request.consumer, "'"));
  }
  return request.rows;
}

// ---- Fetch, seal, clear.

absl::StatusOr<FetchPlan> CheckFetch(const TableState& table, const FetchRequest& request) {
  if (request.rows.empty()) return absl::InvalidArgumentError("a fetch names no rows");
  if (request.columns.empty()) return absl::InvalidArgumentError("a fetch names no columns");
  if (request.rows.size() > kMaxFetchedCells / request.columns.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a fetch names ", request.rows.size(), " rows and ",
                                                   request.columns.size(), " columns; at most ", kMaxFetchedCells,
                                                   " cells are possible: fetch fewer rows at once"));
  }
  FetchPlan plan;
  std::vector<bool> named(table.schema.size());
  for (const std::string& name : request.columns) {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t column, FindColumn(table, name, 0));
    if (named[column]) return absl::InvalidArgumentError(absl::StrCat("a fetch names column '", name, "' twice"));
    named[column] = true;
    plan.columns.push_back(column);
  }
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(table, row));
    for (uint32_t column : plan.columns) {
      if (!place.cell(column).empty()) continue;
      ++plan.missing_cells;
      plan.missing_row = row;
      plan.missing_column = column;
    }
  }
  return plan;
}

std::vector<RowId> TableState::HeldRows(const Lease& lease) const {
  std::vector<RowId> rows;
  for (RowId row : lease.rows) {
    const std::optional<Place> place = pages.Find(row);
    if (place.has_value() && Holds(lease, *place)) rows.push_back(row);
  }
  return rows;
}

bool TableState::Lacks(RowId row, uint32_t column) const {
  const std::optional<Place> place = pages.Find(row);
  return place.has_value() && place->cell(column).empty();
}

absl::Status CheckSeal(const TableState& table) {
  const IdSet& incomplete = table.groups.incomplete();
  if (incomplete.size() == 0) return absl::OkStatus();
  const Group& first = *table.groups.FindByLeader(incomplete.Select(0));
  return absl::FailedPreconditionError(absl::StrCat(
      "partition '", table.options.name, "' cannot be sealed: ", incomplete.size(),
      " groups are incomplete, first group ", first.id, " with ", first.arrived, " of ", first.size, " rows"));
}

absl::StatusOr<ClearPlan> CheckClear(const TableState& table, const ClearRequest& request) {
  if (!request.rows.empty() + !request.groups.empty() + !request.tags.empty() + request.everything != 1) {
    return absl::InvalidArgumentError("give exactly one of rows, groups, tags and everything to clear");
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(table, request.rows));
  if (!request.rows.empty()) return ClearPlan{request.rows, {}};
  // Before any of their rows are collected.
  if (AnyTwice(request.groups)) return absl::InvalidArgumentError("a group is named twice");
  std::vector<RowId> rows;
  for (GroupId id : request.groups) {
    const Group* const group = table.groups.Find(id);
    if (group == nullptr) {
      return absl::NotFoundError(absl::StrCat("partition '", table.options.name, "' has no group ", id));
    }
    rows.insert(rows.end(), group->rows.begin(), group->rows.end());
  }
  if (!request.groups.empty()) return ClearPlan{std::move(rows), request.groups};
  table.pages.ForEachRow(0, [&](const Place& place) {
    if (table.labels.Match(place.row(), request.tags)) rows.push_back(place.row());
    return true;
  });
  return ClearPlan{std::move(rows), request.everything ? table.groups.Ids() : std::vector<GroupId>()};
}

// ---- Find and list.

absl::StatusOr<std::vector<RowId>> FindRows(const TableState& table, std::span<const std::string> keys) {
  std::vector<RowId> rows;
  rows.reserve(keys.size());
  // Among many keys each lookup misses the cache, unless it was prefetched some keys before.
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < std::min(keys.size(), kAhead); ++i) table.labels.Prefetch(keys[i]);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) table.labels.Prefetch(keys[i + kAhead]);
    const RowId* const row = table.labels.FindKey(keys[i]);
    if (row == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("partition '", table.options.name, "' has no row with key '", EscapeForMessage(keys[i]), "'"));
    }
    rows.push_back(*row);
  }
  return rows;
}

absl::StatusOr<ListResult> List(const TableState& table, const ListRequest& request) {
  if (request.limit < 1) return absl::InvalidArgumentError(absl::StrCat("limit is ", request.limit));
  uint32_t consumer = 0;
  if (!request.ready_for.empty()) {
    TDOCK_ASSIGN_OR_RETURN(consumer, FindConsumer(table, request.ready_for));
  }
  std::vector<uint32_t> columns;
  std::vector<bool> named(table.schema.size());
  for (const std::string& name : request.having) {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t column, FindColumn(table, name, 0));
    if (!named[column]) columns.push_back(column);
    named[column] = true;
  }
  ListResult result;
  int64_t looked_at = 0;
  size_t listed_bytes = 0;
  table.pages.ForEachRow(request.from, [&](const Place& place) {
    if (static_cast<int64_t>(result.rows.size()) == request.limit || looked_at == kMaxListedRows ||
        listed_bytes >= kMaxListedBytes) {
      result.next = place.row();
      return false;
    }
    ++looked_at;
    if (!table.labels.Match(place.row(), request.tags)) return true;
    if (!request.ready_for.empty() && place.state(consumer) != kReady) return true;
    if (std::any_of(columns.begin(), columns.end(), [&](uint32_t c) { return place.cell(c).empty(); })) return true;
    const Labels::Label& label = table.labels.Of(place.row());
    const Histories::History& history = table.histories.Of(place.row());
    listed_bytes += BytesOf(label);
    result.rows.push_back({place.row(), place.group_id(), label.key, label.tags == nullptr ? Tags() : *label.tags,
                           history.age, history.epoch});
    return true;
  });
  return result;
}

}  // namespace tdock::dock
