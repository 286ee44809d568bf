// The status of a partition, of a consumer, and of a row.
#include <utility>

#include "core/base/status.h"
#include "dock/table/decisions.h"

namespace tdock::dock {
namespace {

RowCellStatus StatusOfCell(const TableState& table, const Place& place, uint32_t column, DescribeCell describe) {
  RowCellStatus status{.column = table.schema[column].spec.name};
  const CellRef cell = place.cell(column);
  if (!cell.there()) return status;
  describe(cell.plain(), status);
  status.state = cell.partial() ? CellState::kPartial : CellState::kReady;
  status.weights_version = table.VersionsOf(place.row(), column, status.weights_version).oldest;
  return status;
}

RowConsumerStatus StatusFor(const TableState& table, uint32_t index, const Place& place) {
  const Consumer& consumer = table.consumer(index);
  const RowState state = place.state(index);
  RowConsumerStatus status{.consumer = consumer.options().name, .state = DeliveryStateOf(state)};
  for (uint32_t column : consumer.reads()) {
    if (IsWaiting(state) && place.cell(column).empty()) status.missing.push_back(table.schema[column].spec.name);
  }
  if (const auto it = consumer.redeliveries.find(place.row()); it != consumer.redeliveries.end()) {
    status.redeliveries = it->second;
  }
  if (state == kLeased) {
    const Lease& lease = table.leases.ByKey(place.lease(index));
    status.lease = lease.id;
    status.taken = lease.at;
    status.expires = lease.expires;
  }
  if (state == kUncommitted) status.uncommitted_step = consumer.uncommitted_steps.at(place.row());
  return status;
}

}  // namespace

PartitionStatus StatusOf(const TableState& table) {
  PartitionStatus status;
  status.sealed = table.sealed;
  status.weights_version = table.weights_version;
  status.rows = table.pages.rows();
  status.groups = table.groups.size();
  status.incomplete_groups = table.groups.incomplete().size();
  for (const Schema::Column& column : table.schema) {
    status.columns.push_back({column.spec.name, column.typed, column.spec.type, column.ready_cells});
  }
  for (const TableState::Retainer& retainer : table.retainers) status.retain_for.push_back(retainer.name);
  for (uint32_t index : table.registered) {
    status.consumers.push_back({table.consumer(index).options().name, table.consumer(index).status()});
  }
  return status;
}

absl::StatusOr<RowStatus> StatusOfRow(const TableState& table, RowId row, DescribeCell describe) {
  TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(table, row));
  const Labels::Label& label = table.labels.Of(row);
  const Histories::History& history = table.histories.Of(row);
  RowStatus status{.row = row,
                   .group = place.group_id(),
                   .key = label.key,
                   .tags = label.tags == nullptr ? Tags() : *label.tags,
                   .age = history.age,
                   .epoch = history.epoch};
  for (uint32_t column = 0; column < table.schema.size(); ++column) {
    status.cells.push_back(StatusOfCell(table, place, column, describe));
  }
  for (uint32_t index : table.registered) status.consumers.push_back(StatusFor(table, index, place));
  return status;
}

}  // namespace tdock::dock
