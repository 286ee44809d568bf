// What is allowed, and what to hand out: the decisions of a table.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dock/name.h"
#include "dock/table.h"

namespace tdock {
namespace {

constexpr int32_t kMaxRanks = 1 << 16;
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

}  // namespace

// ---- Finding things.

absl::StatusOr<Place> Table::FindOrError(RowId row) const {
  const std::optional<Place> place = pages_.Find(row);
  if (place.has_value()) return *place;
  return absl::NotFoundError(row < pages_.next_row()
                                 ? absl::StrCat("row ", row, " is gone: it was cleared, or released after its last use")
                                 : absl::StrCat("there is no row ", row));
}

absl::Status Table::CheckRows(const std::vector<RowId>& rows) const {
  if (AnyTwice(rows)) return absl::InvalidArgumentError("a row is named twice");
  for (RowId row : rows) TDOCK_RETURN_IF_ERROR(FindOrError(row).status());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Table::FindConsumer(absl::string_view name) const {
  const auto it = consumer_by_name_.find(name);
  if (it != consumer_by_name_.end()) return it->second;
  std::vector<std::string> names;
  for (uint32_t index : registered_) names.push_back(consumers_[index]->options().name);
  return absl::NotFoundError(
      absl::StrCat("partition '", options_.name, "' has no consumer '", name, "'; it has ", Quoted(names)));
}

absl::StatusOr<uint32_t> Table::FindColumn(absl::string_view name, uint32_t guess) const {
  const uint32_t found = schema_.Find(name, guess);
  if (found != Schema::kNone) return found;
  std::vector<std::string> names;
  for (const Schema::Column& column : schema_) names.push_back(column.spec.name);
  return absl::NotFoundError(
      absl::StrCat("partition '", options_.name, "' has no column '", name, "'; it has ", Quoted(names)));
}

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
    const ConsumerOptions& old = consumers_[it->second]->options();
    std::vector<absl::string_view> differences;
    if (old.reads != options.reads) differences.push_back("reads");
    if (old.writes != options.writes) differences.push_back("writes");
    if (old.unit != options.unit) differences.push_back("unit");
    if (old.sampler != options.sampler) differences.push_back("sampler");
    if (old.seed != options.seed) differences.push_back("seed");
    if (old.length_column != options.length_column) differences.push_back("length_column");
    if (old.own_sampler != options.own_sampler) differences.push_back("own_sampler");
    if (old.ranks != options.ranks) differences.push_back("ranks");
    if (old.lease_duration != options.lease_duration) differences.push_back("lease_duration");
    if (old.max_deliveries != options.max_deliveries) differences.push_back("max_deliveries");
    if (old.at_most_once != options.at_most_once) differences.push_back("at_most_once");
    if (old.checkpointed != options.checkpointed) differences.push_back("checkpointed");
    if (differences.empty()) return false;
    return absl::AlreadyExistsError(absl::StrCat(who, " is registered with other ", absl::StrJoin(differences, ", "),
                                                 "; it reads ", Quoted(old.reads), " and writes ", Quoted(old.writes)));
  }
  if (options.reads.size() > kMaxReads) {
    return absl::InvalidArgumentError(absl::StrCat(who, " reads ", options.reads.size(), " columns; at most ",
                                                   static_cast<int>(kMaxReads), " are possible"));
  }
  if (options.unit > Unit::kGroup) return absl::InvalidArgumentError(absl::StrCat(who, " has an unknown unit"));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckSampler(options), who));
  if (options.lease_duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has a lease_duration of ", absl::FormatDuration(options.lease_duration)));
  }
  if (options.max_deliveries < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " has max_deliveries of ", options.max_deliveries, "; it must be at least 1"));
  }
  if (options.at_most_once && options.checkpointed) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " is checkpointed and takes rows at most once; what is done at once cannot be rolled back"));
  }
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(options.reads, "reads"), who));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckColumnNames(options.writes, "writes"), who));
  return true;
}

absl::Status Table::CheckSampler(const ConsumerOptions& options) const {
  if (options.sampler > Sampler::kOwn) return absl::InvalidArgumentError("unknown sampler");
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("ranks is ", options.ranks, "; 1 to ", kMaxRanks, " are possible"));
  }
  if ((options.sampler == Sampler::kOwn) == options.own_sampler.empty()) {
    return absl::InvalidArgumentError("own_sampler is the name of the sampler where it is kOwn, and empty elsewhere");
  }
  if (options.length_column.empty()) {
    if (options.sampler != Sampler::kLengthBalanced) return absl::OkStatus();
    return absl::InvalidArgumentError("a sampler that balances lengths needs a length_column");
  }
  if (std::find(options.reads.begin(), options.reads.end(), options.length_column) == options.reads.end()) {
    return absl::InvalidArgumentError(absl::StrCat("length_column '", options.length_column,
                                                   "' is not among its reads; these are ", Quoted(options.reads)));
  }
  const uint32_t column = schema_.Find(options.length_column);
  if (column == Schema::kNone || !schema_[column].typed) return absl::OkStatus();
  if (schema_[column].spec.type.kind != ColumnKind::kDense) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("length_column '", options.length_column, "' holds ",
                                                 ToString(schema_[column].spec.type), ": all its rows are as long"));
}

absl::Status Table::CheckDropConsumer(absl::string_view name) const {
  const bool retains = std::any_of(retainers_.begin(), retainers_.end(),
                                   [&](const Retainer& retainer) { return retainer.name == name; });
  return retains ? absl::OkStatus() : FindConsumer(name).status();
}

// ---- Put.

absl::StatusOr<std::vector<uint32_t>> Table::CheckPut(const PutRequest& request) const {
  const Batch& batch = request.batch;
  if (batch.rows() == 0) return absl::InvalidArgumentError("the batch has no rows");
  if (batch.rows() > kMaxRowsPerPut) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", batch.rows(), " rows; at most ", kMaxRowsPerPut, " fit one put"));
  }
  if (request.weights_version < kNoWeightsVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights_version is ", request.weights_version, "; versions are numbered from 0 on"));
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
      index = Schema::kNone;
    } else if (const Schema::Column& column = schema_[*index];
               column.typed && column.spec.type != given.column.type()) {
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
  if (request.step != kNoStep) return absl::InvalidArgumentError("a put of new rows completes nothing: give no step");
  if (request.keep) return absl::InvalidArgumentError("keep is for puts under a lease");
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
    const Group* const group = groups_.Find(id);
    const int64_t size = group == nullptr ? new_size : group->size;
    const int64_t arrived = group == nullptr ? 0 : group->arrived;
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
  if (request.lease != kNoLease && !request.keep) {
    TDOCK_RETURN_IF_ERROR(CheckStep(request.lease, request.step));
  } else if (request.step != kNoStep) {
    return absl::InvalidArgumentError("this put completes nothing: give no step");
  }
  for (RowId row : rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
    if (request.overwrite) continue;
    for (uint32_t column : columns) {
      if (column == Schema::kNone || place.cell(column).empty()) continue;
      return absl::AlreadyExistsError(absl::StrCat("column '", schema_[column].spec.name, "' of row ", row,
                                                   " is there already; overwrite replaces it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Table::CheckLeaseOfPut(const PutRequest& request, std::span<const uint32_t> columns) const {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(request.lease));
  const Consumer& consumer = *consumers_[lease->consumer];
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::vector<uint32_t>& writes = consumer.writes();
    if (std::find(writes.begin(), writes.end(), columns[i]) != writes.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("consumer '", consumer.options().name, "' does not write column '",
                                                   request.batch.columns()[i].name, "'; it writes ",
                                                   Quoted(consumer.options().writes)));
  }
  return CheckLease({.partition = {}, .lease = request.lease, .rows = request.rows}).status();
}

// ---- Leases.

absl::StatusOr<const Lease*> Table::FindLease(LeaseId lease) const {
  const Lease* const found = leases_.Find(lease);
  if (found != nullptr) return found;
  if (lease == kNoLease || lease > leases_.last()) {
    return absl::NotFoundError(absl::StrCat("partition '", options_.name, "' has no lease ", lease));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("lease ", lease, " is over: it expired, or its rows are all completed, released or cleared"));
}

bool Table::Holds(const Lease& lease, const Place& place) const {
  return place.state(lease.consumer) == kLeased && place.lease(lease.consumer) == lease.key();
}

std::vector<RowId> Table::HeldRows(const Lease& lease) const {
  std::vector<RowId> rows;
  for (RowId row : lease.rows) {
    const std::optional<Place> place = pages_.Find(row);
    if (place.has_value() && Holds(lease, *place)) rows.push_back(row);
  }
  return rows;
}

absl::StatusOr<std::vector<RowId>> Table::CheckLease(const LeaseRequest& request) const {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(request.lease));
  if (request.rows.empty()) return HeldRows(*lease);
  if (AnyTwice(request.rows)) return absl::InvalidArgumentError("a row is named twice");
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
    if (!Holds(*lease, place)) {
      return absl::FailedPreconditionError(absl::StrCat("row ", row, " is not held by lease ", lease->id,
                                                        " of consumer '", consumers_[lease->consumer]->options().name,
                                                        "'"));
    }
  }
  return request.rows;
}

absl::Status Table::CheckStep(LeaseId lease, int64_t step) const {
  TDOCK_ASSIGN_OR_RETURN(const Lease* found, FindLease(lease));
  const Consumer& consumer = *consumers_[found->consumer];
  if (!consumer.options().checkpointed) {
    if (step == kNoStep) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("consumer '", consumer.options().name, "' is not checkpointed: give no step"));
  }
  if (step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("consumer '", consumer.options().name,
                                                   "' is checkpointed: give the step that completes the rows"));
  }
  if (step > consumer.committed_step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("consumer '", consumer.options().name, "' has committed step ",
                                                    consumer.committed_step, "; rows cannot be completed under step ",
                                                    step));
}

absl::StatusOr<uint32_t> Table::CheckCommit(const StepRequest& request) const {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(request.consumer));
  if (!consumers_[index]->options().checkpointed) {
    return absl::InvalidArgumentError(absl::StrCat("consumer '", request.consumer, "' is not checkpointed"));
  }
  if (request.step >= kNoStep) return index;
  return absl::InvalidArgumentError(absl::StrCat("there is no step ", request.step, "; steps are numbered from 0 on"));
}

absl::StatusOr<uint32_t> Table::CheckRollback(const StepRequest& request) const {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, CheckCommit(request));
  const int64_t committed = consumers_[index]->committed_step;
  if (request.step >= committed) return index;
  return absl::FailedPreconditionError(absl::StrCat("consumer '", request.consumer, "' has committed step ", committed,
                                                    "; it cannot go back to step ", request.step));
}

absl::StatusOr<std::vector<RowId>> Table::CheckDrop(const LeaseRequest& request) const {
  if (request.lease != kNoLease) return CheckLease(request);
  if (request.rows.empty()) return absl::InvalidArgumentError("without a lease, name the rows to drop");
  TDOCK_RETURN_IF_ERROR(CheckRows(request.rows));
  return request.rows;
}

absl::StatusOr<std::vector<RowId>> Table::CheckRequeue(const RequeueRequest& request) const {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(request.consumer));
  const IdSet& quarantined = consumers_[index]->quarantined();
  if (request.rows.empty()) {
    std::vector<RowId> rows;
    quarantined.First(quarantined.size(), rows);
    return rows;
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(request.rows));
  for (RowId row : request.rows) {
    if (quarantined.Contains(row)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("row ", row, " is not quarantined for consumer '", request.consumer, "'"));
  }
  return request.rows;
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
    for (uint32_t column : plan.columns) plan.missing_cells += place.cell(column).empty();
  }
  return plan;
}

absl::Status Table::CheckSeal() const {
  const IdSet& incomplete = groups_.incomplete();
  if (incomplete.size() == 0) return absl::OkStatus();
  const Group& first = *groups_.FindByLeader(incomplete.Select(0));
  return absl::FailedPreconditionError(absl::StrCat(
      "partition '", options_.name, "' cannot be sealed: ", incomplete.size(), " groups are incomplete, first group ",
      first.id, " with ", first.arrived, " of ", first.size, " rows"));
}

absl::StatusOr<Table::ClearPlan> Table::CheckClear(const ClearRequest& request) const {
  if (!request.rows.empty() + !request.groups.empty() + request.everything != 1) {
    return absl::InvalidArgumentError("clear either rows, or groups, or everything");
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(request.rows));
  if (!request.rows.empty()) return ClearPlan{request.rows, {}};
  std::vector<RowId> rows;
  for (GroupId id : request.groups) {
    const Group* const group = groups_.Find(id);
    if (group == nullptr) {
      return absl::NotFoundError(absl::StrCat("partition '", options_.name, "' has no group ", id));
    }
    rows.insert(rows.end(), group->rows.begin(), group->rows.end());
  }
  if (AnyTwice(request.groups)) return absl::InvalidArgumentError("a group is named twice");
  if (!request.everything) return ClearPlan{std::move(rows), request.groups};
  pages_.ForEachRow(0, [&](const Place& place) {
    rows.push_back(place.row());
    return true;
  });
  return ClearPlan{std::move(rows), groups_.Ids()};
}

}  // namespace tdock
