// A table as plain data, and an equal table of it.
#include "dock/table/table_image.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/table/decisions.h"
#include "dock/table/limits.h"
#include "dock/table/name.h"
#include "dock/table/table.h"

namespace tdock::dock {
namespace {

// Of what is counted up from an image on, so that it never overflows.
constexpr int64_t kMostCounted = int64_t{1} << 62;
constexpr int32_t kMostReturns = int32_t{1} << 30;

absl::Status CheckCount(absl::string_view what, int64_t count, int64_t least, int64_t most = kMostCounted) {
  if (count >= least && count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", count, "; it must be ", least, " to ", most));
}

absl::Status NotAscending(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " are not ascending"));
}

TableImage::ConsumerState ImageOf(const Consumer& consumer) {
  TableImage::ConsumerState state{.options = consumer.options()};
  ForEachKeptCount([](const char*, int64_t& kept, int64_t count) { kept = count; }, state.counts, consumer.counts);
  for (int32_t rank = 0; rank < consumer.options().ranks; ++rank) state.takes.push_back(consumer.share(rank).takes);
  for (const auto& [row, count] : consumer.redeliveries) state.redeliveries.push_back({row, count});
  std::sort(state.redeliveries.begin(), state.redeliveries.end(),
            [](const auto& a, const auto& b) { return a.row < b.row; });
  return state;
}

void AddTo(TableImage& image, const TableState& table, const Place& place) {
  const RowId row = place.row();
  const bool dropped = place.page->IsDropped(place.slot);
  image.rows.push_back({row, place.group_id(), dropped, table.labels.Of(row), table.histories.Of(row)});
  for (uint32_t column = 0; column < table.schema.size(); ++column) {
    if (const CellRef cell = place.cell(column); cell.there()) image.columns[column].cells.push_back({row, cell});
  }
  for (size_t i = 0; i < table.registered.size() && !dropped; ++i) {
    const RowState state = place.state(table.registered[i]);
    if (state == kDone) image.consumers[i].done.push_back({row});
    if (state != kUncommitted) continue;
    image.consumers[i].done.push_back({row, table.consumer(table.registered[i]).uncommitted_steps.at(row)});
  }
}

}  // namespace

// ---- The image of a table.

TableImage ImageOf(const TableState& table) {
  TableImage image{.sealed = table.sealed,
                   .weights_version = table.weights_version,
                   .newest_version = table.newest_version,
                   .next_row = table.pages.next_row(),
                   .last_lease = table.leases.last(),
                   .groups_begun = table.groups.begun(),
                   .largest_group = table.largest_group};
  for (const TableState::Retainer& retainer : table.retainers) image.retained_for.push_back(retainer.name);
  for (const Schema::Column& column : table.schema) {
    image.columns.push_back({column.spec, column.typed});
    image.columns.back().cells.reserve(static_cast<size_t>(column.ready_cells));
  }
  table.groups.ForEach([&](const Group& group) {
    image.groups.push_back({group.id, group.size, group.arrived, group.leader, group.age, group.ordinal});
  });
  std::sort(image.groups.begin(), image.groups.end(),
            [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
  for (uint32_t index : table.registered) image.consumers.push_back(ImageOf(table.consumer(index)));
  image.rows.reserve(static_cast<size_t>(table.pages.rows()));
  table.pages.ForEachRow(0, [&](const Place& place) {
    AddTo(image, table, place);
    return true;
  });
  return image;
}

// ---- The table of an image.

absl::Status Table::Restore(const TableImage& image) {
  TDOCK_CHECK(state_.changes == 0, "a table that was changed before it was restored");
  TDOCK_RETURN_IF_ERROR(RestoreNumbers(image));
  TDOCK_RETURN_IF_ERROR(RestoreColumns(image));
  TDOCK_RETURN_IF_ERROR(RestoreGroups(image));
  for (const TableImage::Row& row : image.rows) {
    TDOCK_RETURN_IF_ERROR(Annotate(RestoreRow(image, row), absl::StrCat("row ", row.id)));
  }
  state_.pages.SkipTo(image.next_row);
  for (const TableImage::Column& column : image.columns) {
    TDOCK_RETURN_IF_ERROR(Annotate(RestoreCells(column), absl::StrCat("column '", column.spec.name, "'")));
  }
  // As consumers that register late: their rows get the states that follow from their cells.
  for (const TableImage::ConsumerState& consumer : image.consumers) {
    TDOCK_RETURN_IF_ERROR(RestoreConsumer(consumer));
  }
  // A consumer may name as its length_column one that only then got a type that it would not be registered with.
  for (const TableImage::Column& column : image.columns) {
    if (column.typed) On(ColumnAdded{column.spec});
  }
  return absl::OkStatus();
}

absl::Status Table::RestoreNumbers(const TableImage& image) {
  TDOCK_RETURN_IF_ERROR(CheckCount("the next row", static_cast<int64_t>(image.next_row), 0));
  TDOCK_RETURN_IF_ERROR(CheckCount("the last lease", static_cast<int64_t>(image.last_lease), 0));
  TDOCK_RETURN_IF_ERROR(CheckCount("the number of groups", static_cast<int64_t>(image.groups_begun), 0));
  TDOCK_RETURN_IF_ERROR(CheckCount("the largest group", image.largest_group, 1, kMaxGroupSize));
  TDOCK_RETURN_IF_ERROR(CheckCount("the weights version", image.weights_version, kNoWeightsVersion));
  TDOCK_RETURN_IF_ERROR(CheckCount("the newest weights version", image.newest_version, kNoWeightsVersion));
  state_.sealed = image.sealed;
  state_.weights_version = image.weights_version;
  state_.newest_version = image.newest_version;
  state_.largest_group = image.largest_group;
  state_.leases.SkipTo(image.last_lease);
  // Of those that the options name, some may have been dropped since.
  auto kept = image.retained_for.begin();
  std::erase_if(state_.retainers, [&](const TableState::Retainer& retainer) {
    const bool is_kept = kept != image.retained_for.end() && *kept == retainer.name;
    kept += is_kept;
    return !is_kept;
  });
  if (kept == image.retained_for.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows are retained for consumer '", EscapeForMessage(*kept),
                                                 "', which retain_for does not name in this place"));
}

absl::Status Table::RestoreColumns(const TableImage& image) {
  if (image.columns.size() > kMaxColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat(image.columns.size(), " columns; a partition has at most ", kMaxColumns));
  }
  for (size_t i = 0; i < image.columns.size(); ++i) {
    const auto& [spec, typed, cells] = image.columns[i];
    TDOCK_RETURN_IF_ERROR(CheckName("column", spec.name));
    const bool is_option = i < state_.options.columns.size();
    if ((!is_option && !state_.options.growing) || state_.schema.Name(spec.name) != i ||
        (is_option && (!typed || spec != state_.options.columns[i]))) {
      return absl::InvalidArgumentError(absl::StrCat("column '", spec.name, "' is not where the options have it"));
    }
    if (!typed && !cells.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("column '", spec.name, "' has cells and no type"));
    }
  }
  if (image.columns.size() == state_.schema.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(image.columns.size(), " columns, fewer than the ", state_.schema.size(), " of the options"));
}

absl::Status Table::RestoreGroups(const TableImage& image) {
  absl::flat_hash_map<GroupId, int64_t> rows_here;
  for (const TableImage::Row& row : image.rows) {
    if (row.group != kNoGroup) ++rows_here[row.group];
  }
  uint64_t next_ordinal = 0;
  RowId next_leader = 0;
  for (const TableImage::GroupState& group : image.groups) {
    const std::string what = absl::StrCat("group ", group.id);
    if (group.id == kNoGroup || state_.groups.Find(group.id) != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is there twice, or is none"));
    }
    if (group.ordinal < next_ordinal || group.ordinal >= image.groups_begun || group.leader < next_leader ||
        group.leader >= image.next_row) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is the ", group.ordinal, "th and began with row ",
                                                     group.leader,
                                                     "; groups must be in the order in which they began, before group ",
                                                     image.groups_begun, " and row ", image.next_row));
    }
    next_ordinal = group.ordinal + 1;
    next_leader = group.leader + 1;
    TDOCK_RETURN_IF_ERROR(Annotate(CheckCount("its size", group.size, 1, kMaxGroupSize), what));
    TDOCK_RETURN_IF_ERROR(Annotate(CheckCount("the rows put", group.arrived, 1, group.size), what));
    TDOCK_RETURN_IF_ERROR(Annotate(CheckCount("its age", group.age, 0, kMostReturns), what));
    const int64_t here = rows_here[group.id];
    if (here > group.arrived || (here == 0 && group.arrived == group.size) ||
        (image.sealed && group.arrived < group.size)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " of ", group.size, " rows, of which ", group.arrived,
                                                     " were put, has ", here,
                                                     image.sealed ? ", and the partition is sealed" : ""));
    }
    state_.groups.Restore(group.id, group.size, group.arrived - here, group.leader, group.age, group.ordinal);
    state_.any_group_aged |= group.age > 0;
  }
  state_.groups.SetBegun(image.groups_begun);
  return absl::OkStatus();
}

absl::Status Table::RestoreRow(const TableImage& image, const TableImage::Row& row) {
  if (row.id < state_.pages.next_row() || row.id >= image.next_row)
    return NotAscending("the rows, below the next row,");
  TDOCK_RETURN_IF_ERROR(CheckCount("its age", row.history.age, 0, kMostReturns));
  TDOCK_RETURN_IF_ERROR(CheckCount("its epoch", row.history.epoch, 0, row.history.age));
  if (!row.label.key.empty()) {
    TDOCK_RETURN_IF_ERROR(CheckName("key", row.label.key));
    if (state_.labels.FindKey(row.label.key) != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("its key '", row.label.key, "' is another's, too"));
    }
  }
  if (row.label.tags != nullptr) TDOCK_RETURN_IF_ERROR(CheckTags(*row.label.tags));
  // The place of a group is its first row's, which may be gone, but is not another's.
  const Group* const led = state_.groups.FindByLeader(row.id);
  const Group* const group = row.group == kNoGroup ? nullptr : state_.groups.Find(row.group);
  if ((row.group == kNoGroup) != (group == nullptr) || (led != nullptr && led != group) ||
      (group != nullptr && row.id < group->leader)) {
    return absl::InvalidArgumentError(absl::StrCat("it is not of group ", row.group, " as the groups are"));
  }
  for (const auto& [column, pieces] : row.history.pieces) {
    if (column >= image.columns.size()) return absl::InvalidArgumentError(absl::StrCat("there is no column ", column));
  }

  state_.pages.SkipTo(row.id);
  state_.pages.Append(
      1, [](Page&) {},
      [&](Page& page, uint64_t slot, int64_t) {
        if (group != nullptr) JoinGroups(page, slot, std::span(&row.group, 1), group->size);
        if (row.dropped) page.dropped[slot / 64] |= uint64_t{1} << slot % 64;
      });
  if (!row.label.key.empty()) state_.labels.SetKey(row.id, row.label.key);
  if (row.label.tags != nullptr) state_.labels.AddTags(row.id, row.label.tags);
  state_.histories.Restore(row.id, row.history);
  return absl::OkStatus();
}

absl::Status Table::RestoreCells(const TableImage::Column& column) {
  const uint32_t index = state_.schema.Find(column.spec.name);
  RowId next = 0;
  for (const auto& [row, cell] : column.cells) {
    const std::optional<Place> place = state_.pages.Find(row);
    if (!place.has_value()) return absl::InvalidArgumentError(absl::StrCat("a cell of row ", row, ", which is gone"));
    if (row < next) return NotAscending("the rows of its cells");
    next = row + 1;
    CellsFor(*place->page, index)[place->slot] = cell;
    if (!cell.partial()) ++state_.schema[index].ready_cells;
  }
  return absl::OkStatus();
}

absl::Status Table::RestoreConsumer(const TableImage::ConsumerState& image) {
  const std::string who = absl::StrCat("consumer '", image.options.name, "'");
  if (state_.consumer_by_name.contains(image.options.name)) {
    return absl::InvalidArgumentError(absl::StrCat(who, " is there twice"));
  }
  if (const absl::Status status = CheckConsumer(state_, image.options).status(); !status.ok()) {
    return absl::InvalidArgumentError(status.message());
  }
  absl::Status checked;
  const auto check = [&](absl::string_view name, int64_t count) {
    const bool is_step = name == "committed_step";
    checked.Update(CheckCount(name, count, is_step ? kNoStep : 0,
                              is_step && !image.options.checkpointed ? kNoStep : kMostCounted));
  };
  ForEachKeptCount(check, image.counts);
  TDOCK_RETURN_IF_ERROR(Annotate(checked, who));
  if (image.takes.size() != static_cast<size_t>(image.options.ranks)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": takes of ", image.takes.size(), " ranks"));
  }
  On(ConsumerRegistered{image.options});
  const uint32_t index = state_.registered.back();
  Consumer& consumer = *state_.consumers[index];
  ForEachKeptCount([](const char*, int64_t& count, int64_t kept) { count = kept; }, consumer.counts, image.counts);
  consumer.RestoreTakes(image.takes);
  TDOCK_RETURN_IF_ERROR(Annotate(RestoreDone(index, image.done), who));
  return Annotate(RestoreRedeliveries(index, image.redeliveries), who);
}

absl::Status Table::RestoreDone(uint32_t index, const std::vector<TableImage::DoneRow>& done) {
  Consumer& consumer = *state_.consumers[index];
  for (const auto& [row, step] : done) {
    const std::optional<Place> place = state_.pages.Find(row);
    // One that is done already was dropped, or is there twice. What can be rolled back is then ready.
    const bool may_be = place.has_value() && DeliveryStateOf(place->state(index)) != DeliveryState::kDone &&
                        (step == kNoStep || (consumer.options().checkpointed && step > consumer.counts.committed_step &&
                                             step <= kMostCounted && place->state(index) == kReady));
    if (!may_be) return absl::InvalidArgumentError(absl::StrCat("row ", row, " cannot be done under step ", step));
    if (step == kNoStep) {
      Move(index, *place, kDone);
      continue;
    }
    consumer.uncommitted_rows[step].push_back(row);
    consumer.uncommitted_steps[row] = step;
    Move(index, *place, kUncommitted);
  }
  return absl::OkStatus();
}

absl::Status Table::RestoreRedeliveries(uint32_t index, const std::vector<TableImage::Redelivery>& redeliveries) {
  Consumer& consumer = *state_.consumers[index];
  for (const auto& [row, count] : redeliveries) {
    const std::optional<Place> place = state_.pages.Find(row);
    if (!place.has_value() || place->state(index) != kReady || count < 1 || count > consumer.options().max_deliveries ||
        !consumer.redeliveries.emplace(row, count).second) {
      return absl::InvalidArgumentError(absl::StrCat("the lease of row ", row, " cannot have expired ", count,
                                                     " times: it is gone, or in another state"));
    }
    if (count == consumer.options().max_deliveries) Move(index, *place, kQuarantined);
  }
  return absl::OkStatus();
}

}  // namespace tdock::dock
