// Which puts are allowed.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/table/decisions.h"
#include "dock/table/limits.h"
#include "dock/table/name.h"
#include "dock/table/table_text.h"

namespace tdock::dock {
namespace {

// Whether the given type fits the column. Text is bytes, and bytes may be text: that is checked when they are written.
bool Takes(const ColumnType& type, const ColumnType& given) {
  return type == given || (type.kind == ColumnKind::kBytes && given.kind == ColumnKind::kBytes);
}

// Existing rows keep their tags.
absl::Status CheckTagsOfRows(const TableState& table, const FillRequest& request) {
  for (size_t i = 0; !request.tags.empty() && !table.labels.empty() && i < request.rows.size(); ++i) {
    const auto& has = table.labels.Of(request.rows[i]).tags;
    if (has == nullptr) continue;
    const Tags& given = request.tags[request.tags.size() == 1 ? 0 : i];
    size_t together = has->size();
    for (const auto& [name, value] : given) together += has->contains(name) ? 0 : 1;
    if (together <= kMaxTags) continue;
    return absl::InvalidArgumentError(absl::StrCat("row ", request.rows[i], " has ", has->size(),
                                                   " tags, and would have ", together, "; at most ", kMaxTags,
                                                   " are possible"));
  }
  return absl::OkStatus();
}

// Checks the sizes and tags of a put of any kind. `rows`: their number.
template <class Request>
absl::Status CheckSizeOfPut(const Request& request, int64_t rows) {
  if (rows > kMaxRowsPerPut) {
    return absl::InvalidArgumentError(
        absl::StrCat("the put has ", rows, " rows; at most ", kMaxRowsPerPut, " fit one put"));
  }
  if (request.batch.columns().size() > kMaxColumns) {
    return absl::InvalidArgumentError(absl::StrCat("the put has ", request.batch.columns().size(),
                                                   " columns; a partition has at most ", kMaxColumns));
  }
  if (request.tags.size() > 1 && static_cast<int64_t>(request.tags.size()) != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.tags.size(), " sets of tags for ", rows, " rows; give one for each row, or one for all"));
  }
  for (const Tags& tags : request.tags) TDOCK_RETURN_IF_ERROR(CheckTags(tags));
  if (request.weights_version >= kNoWeightsVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weights_version is ", request.weights_version, "; versions are numbered from 0 on"));
}

absl::StatusOr<std::vector<uint32_t>> CheckColumns(const TableState& table, const Batch& batch) {
  std::vector<uint32_t> columns;
  columns.reserve(batch.columns().size());
  uint32_t guess = 0;
  size_t more = 0;
  for (const NamedColumn& given : batch.columns()) {
    absl::StatusOr<uint32_t> index = FindColumn(table, given.name, guess);
    if (!index.ok()) {
      TDOCK_RETURN_IF_ERROR(CheckName("column", given.name));
      if (!table.options.growing) return std::move(index).status();
      index = Schema::kNone;
      ++more;
    } else if (const Schema::Column& column = table.schema[*index];
               column.typed && !Takes(column.spec.type, given.column.type())) {
      return absl::InvalidArgumentError(absl::StrCat("column '", given.name, "' holds ", ToString(column.spec.type),
                                                     "; given ", ToString(given.column.type())));
    }
    columns.push_back(*index);
    guess = *index + 1;
  }
  if (more > 0) TDOCK_RETURN_IF_ERROR(CheckRoomForColumns(table, more));
  return columns;
}

absl::Status CheckKeys(const TableState& table, const PutRequest& request) {
  if (request.keys.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(request.keys.size()) != RowsOf(request)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.keys.size(), " keys for ", RowsOf(request), " rows; give one for each row"));
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& key : request.keys) {
    if (key.empty()) continue;
    TDOCK_RETURN_IF_ERROR(CheckName("key", key));
    if (const RowId* const row = table.labels.FindKey(key); row != nullptr) {
      return absl::AlreadyExistsError(absl::StrCat("row ", *row, " has key '", key, "' already"));
    }
    if (!seen.insert(key).second) return absl::InvalidArgumentError(absl::StrCat("key '", key, "' is given twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const TableState& table, const PutRequest& request) {
  const std::vector<GroupId>& groups = request.groups;
  if (request.group_size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("group_size is ", request.group_size));
  }
  const int64_t new_size = GroupSizeFor(table, request);
  if (new_size > kMaxGroupSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", new_size, " rows; at most ", kMaxGroupSize, " are possible"));
  }
  if (groups.empty()) {
    if (new_size == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("groups have ", new_size, " rows here; name the group of each row"));
  }
  if (static_cast<int64_t>(groups.size()) != RowsOf(request)) {
    return absl::InvalidArgumentError(
        absl::StrCat(groups.size(), " groups for ", RowsOf(request), " rows; give one for each row"));
  }
  absl::flat_hash_map<GroupId, int64_t> given;
  for (size_t i = 0; i < groups.size();) {
    size_t end = i + 1;
    while (end < groups.size() && groups[end] == groups[i]) ++end;
    given[groups[i]] += static_cast<int64_t>(end - i);
    i = end;
  }
  for (const auto& [id, count] : given) {
    if (id == kNoGroup) return absl::InvalidArgumentError(absl::StrCat("a group id must not be ", id));
    const Group* const group = table.groups.Find(id);
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

absl::Status CheckEpochs(const TableState& table, const FillRequest& request) {
  if (request.epochs.empty()) return absl::OkStatus();
  if (request.epochs.size() != request.rows.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.epochs.size(), " epochs for ", request.rows.size(), " rows; give one for each row"));
  }
  for (size_t i = 0; i < request.rows.size(); ++i) {
    const uint32_t epoch = table.histories.Of(request.rows[i]).epoch;
    if (epoch == request.epochs[i]) continue;
    return absl::FailedPreconditionError(absl::StrCat("row ", request.rows[i], " is of epoch ", epoch,
                                                      ", and the put is for epoch ", request.epochs[i],
                                                      ": the row was sent back in between"));
  }
  return absl::OkStatus();
}

absl::Status CheckLeaseOfFill(const TableState& table, const FillRequest& request, std::span<const uint32_t> columns) {
  TDOCK_ASSIGN_OR_RETURN(const Lease* lease, FindLease(table, request.lease));
  const Consumer& consumer = table.consumer(lease->consumer);
  for (size_t i = 0; i < columns.size(); ++i) {
    if (consumer.Writes(columns[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("consumer '", consumer.options().name, "' does not write column '",
                                                   request.batch.columns()[i].name, "'; it writes ",
                                                   Quoted(consumer.options().writes)));
  }
  return CheckLease(table, {.partition = {}, .lease = request.lease, .rows = request.rows}).status();
}

absl::Status CheckOptionsOfFill(const TableState& table, const FillRequest& request) {
  if (request.partial && request.overwrite) {
    return absl::InvalidArgumentError("a partial cell does not overwrite one that is ready");
  }
  if (request.keep && request.lease == kNoLease) {
    return absl::InvalidArgumentError("keep is only for puts under a lease");
  }
  const bool completes = request.lease != kNoLease && !request.keep && !request.partial;
  if (completes) return CheckStep(table, request.lease, request.step);
  if (request.step == kNoStep) return absl::OkStatus();
  return absl::InvalidArgumentError("this put completes nothing: give no step");
}

absl::Status CheckCells(const TableState& table, const FillRequest& request, std::span<const uint32_t> columns) {
  for (RowId row : request.rows) {
    TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(table, row));
    if (request.overwrite) continue;
    for (uint32_t column : columns) {
      if (column == Schema::kNone || place.cell(column).empty()) continue;
      return absl::AlreadyExistsError(absl::StrCat("column '", table.schema[column].spec.name, "' of row ", row,
                                                   " exists already; to replace it, set overwrite"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> CheckPut(const TableState& table, const PutRequest& request) {
  if (request.new_rows < 0 || (request.new_rows != 0 && !request.batch.columns().empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("new_rows is ", request.new_rows, "; it is for rows without cells, with an empty batch"));
  }
  if (RowsOf(request) == 0) return absl::InvalidArgumentError("the batch has no rows");
  TDOCK_RETURN_IF_ERROR(CheckSizeOfPut(request, RowsOf(request)));
  TDOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> columns, CheckColumns(table, request.batch));
  if (table.sealed) {
    return absl::FailedPreconditionError(absl::StrCat("partition '", table.options.name, "' is sealed"));
  }
  TDOCK_RETURN_IF_ERROR(CheckKeys(table, request));
  TDOCK_RETURN_IF_ERROR(CheckGroups(table, request));
  return columns;
}

absl::StatusOr<std::vector<uint32_t>> CheckPut(const TableState& table, const FillRequest& request) {
  const auto rows = static_cast<int64_t>(request.rows.size());
  const bool cells = !request.batch.columns().empty();
  if (rows == 0) return absl::InvalidArgumentError("the request names no rows to fill");
  if (!cells && request.tags.empty()) return absl::InvalidArgumentError("the batch has no columns");
  if (cells && request.batch.rows() != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", request.batch.rows(), " rows; given ", rows, " row ids"));
  }
  TDOCK_RETURN_IF_ERROR(CheckSizeOfPut(request, rows));
  TDOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> columns, CheckColumns(table, request.batch));
  if (AnyTwice(request.rows)) return absl::InvalidArgumentError("a put names a row twice");
  if (request.lease != kNoLease) TDOCK_RETURN_IF_ERROR(CheckLeaseOfFill(table, request, columns));
  TDOCK_RETURN_IF_ERROR(CheckOptionsOfFill(table, request));
  TDOCK_RETURN_IF_ERROR(CheckCells(table, request, columns));
  TDOCK_RETURN_IF_ERROR(CheckEpochs(table, request));
  TDOCK_RETURN_IF_ERROR(CheckTagsOfRows(table, request));
  return columns;
}

int64_t RowsClaimedBy(const TableState& table, const PutRequest& request) {
  if (request.groups.empty()) return RowsOf(request);
  absl::flat_hash_set<GroupId> begun;
  for (GroupId id : request.groups) {
    if (table.groups.Find(id) == nullptr) begun.insert(id);
  }
  return static_cast<int64_t>(begun.size()) * GroupSizeFor(table, request);
}

absl::Status CheckNeedsNoCommit(const TableState& table, int64_t rows) {
  for (const TableState::Retainer& retainer : table.retainers) {
    if (!retainer.consumer.has_value()) continue;
    const Consumer& consumer = table.consumer(*retainer.consumer);
    const bool all = consumer.counts.uncommitted > 0 && consumer.counts.uncommitted == table.pages.rows();
    const int64_t room = table.options.max_rows;
    if (!all && (room == 0 || consumer.counts.uncommitted + rows <= room)) continue;
    return absl::FailedPreconditionError(absl::StrCat("there is no room for ", rows, " rows before consumer '",
                                                      retainer.name, "' commits: ", consumer.counts.uncommitted,
                                                      " rows are done and not committed, after step ",
                                                      consumer.counts.committed_step));
  }
  return absl::OkStatus();
}

}  // namespace tdock::dock
