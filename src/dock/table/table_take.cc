// What a take waits for, and which rows it gets.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "dock/table/decisions.h"
#include "dock/table/samplers.h"

namespace tdock::dock {
namespace {

std::string StateText(RowState state) {
  if (IsWaiting(state)) return "waits for columns";
  return absl::StrCat("is ", DeliveryStateName(DeliveryStateOf(state)));
}

std::vector<RowId> RowsOfUnits(const TableState& table, const Consumer& consumer, std::vector<RowId> units) {
  if (!consumer.by_group() || table.groups.size() == 0) return units;
  std::vector<RowId> rows;
  for (RowId unit : units) {
    const Group* const group = table.groups.FindByLeader(unit);
    if (group == nullptr) {
      rows.push_back(unit);
    } else {
      rows.insert(rows.end(), group->rows.begin(), group->rows.end());
    }
  }
  return rows;
}

Candidate CandidateOf(const TableState& table, const Consumer& consumer, RowId unit, LengthOf length_of) {
  Candidate candidate{.row = unit};
  const Group* const group = consumer.by_group() ? table.groups.FindByLeader(unit) : nullptr;
  const std::span<const RowId> rows = group == nullptr ? std::span(&unit, 1) : std::span(group->rows);
  const std::string& name = consumer.options().length_column;
  const uint32_t column = name.empty() ? Schema::kNone : table.schema.Find(name);
  for (RowId row : rows) {
    const Place place = table.pages.At(row);
    candidate.group = place.group_id();
    candidate.age = table.AgeOf(place);
    if (column != Schema::kNone) candidate.length += length_of(place.cell(column));
    if (const auto it = consumer.redeliveries.find(row); it != consumer.redeliveries.end()) {
      candidate.redeliveries = std::max(candidate.redeliveries, it->second);
    }
  }
  return candidate;
}

}  // namespace

absl::Status CheckTake(const TableState& table, uint32_t index, const TakeRequest& request) {
  if (request.rows.empty() && (request.min < 1 || request.max < request.min)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min is ", request.min, " and max is ", request.max, "; 1 ≤ min ≤ max is needed"));
  }
  const ConsumerOptions& options = table.consumer(index).options();
  if (request.rank >= 0 && request.rank < options.ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("consumer '", options.name, "' has ", options.ranks, " ranks; given rank ", request.rank));
}

absl::Status CheckTakeOfRows(const TableState& table, uint32_t index, const TakeRequest& request) {
  const Consumer& consumer = table.consumer(index);
  const std::string& name = consumer.options().name;
  if (consumer.by_group()) {
    return absl::InvalidArgumentError(
        absl::StrCat("consumer '", name, "' takes whole groups: it cannot take rows by their ids"));
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(table, request.rows));
  for (RowId row : request.rows) {
    const Place place = table.pages.At(row);
    const RowState state = place.state(index);
    if (state == kReady &&
        place.row() % static_cast<RowId>(consumer.options().ranks) == static_cast<RowId>(request.rank)) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat("row ", row, " is not ready for consumer '", name, "': it ",
                                                      state == kReady ? "belongs to another rank" : StateText(state)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> LeastToTake(const TableState& table, uint32_t index, int32_t rank, int64_t min) {
  if (!table.sealed) return min;
  const Consumer& consumer = table.consumer(index);
  const Consumer::Share& share = consumer.share(rank);
  const std::string who = absl::StrCat("consumer '", consumer.options().name, "'",
                                       consumer.options().ranks > 1 ? absl::StrCat(", rank ", rank) : "");
  if (share.open == 0) {
    return absl::OutOfRangeError(
        absl::StrCat("partition '", table.options.name, "' is sealed, and all its rows are done for ", who));
  }
  if (share.coming > 0) return std::min(min, share.coming);
  if (consumer.counts.leased > 0) return 1;
  std::string text = absl::StrCat(who, " can take no more, though not all rows are done");
  ExplainGroups(table, consumer, text);
  ExplainQuarantine(consumer, text);
  return absl::FailedPreconditionError(text);
}

absl::Status CheckCanCome(const TableState& table, uint32_t index, int32_t rank, int64_t min) {
  const Consumer& consumer = table.consumer(index);
  const bool others_may_release = !consumer.retained() || consumer.counts.done > 0 || consumer.counts.leased > 0;
  if (others_may_release || consumer.share(rank).coming >= min) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "consumer '", consumer.options().name, "' waits for ", min, consumer.by_group() ? " groups" : " rows",
      " and can have ", consumer.share(rank).coming, ": the partition's max_rows of ", table.options.max_rows,
      " is used up by rows that it must take first. Take fewer, or raise max_rows"));
}

absl::StatusOr<std::vector<RowId>> Choose(const TableState& table, uint32_t index, int32_t rank, int64_t min,
                                          int64_t max, const CustomSamplers& samplers, LengthOf length_of) {
  const Consumer& consumer = table.consumer(index);
  const Consumer::Share& share = consumer.share(rank);
  const uint64_t seed = DeriveSeed(DeriveSeed(consumer.options().seed, share.takes), static_cast<uint64_t>(rank));
  const auto candidate = [&](RowId unit) { return CandidateOf(table, consumer, unit, length_of); };
  TDOCK_ASSIGN_OR_RETURN(std::vector<RowId> units,
                         ChooseUnits(consumer.options(), samplers, {share.takeable, min, max, seed, candidate}));
  return RowsOfUnits(table, consumer, std::move(units));
}

std::vector<int32_t> RedeliveriesOf(const TableState& table, uint32_t consumer, std::span<const RowId> rows) {
  const auto& redeliveries = table.consumer(consumer).redeliveries;
  if (redeliveries.empty()) return {};
  std::vector<int32_t> counts;
  for (RowId row : rows) {
    const auto it = redeliveries.find(row);
    counts.push_back(it == redeliveries.end() ? 0 : it->second);
  }
  return counts;
}

}  // namespace tdock::dock
