// The status of a partition, of a consumer, and of a row.
#include <utility>

#include "core/base/status.h"
#include "dock/table/table.h"

namespace tdock::dock {

PartitionStatus Table::Status() const {
  PartitionStatus status;
  status.sealed = sealed_;
  status.weights_version = weights_version_;
  status.rows = pages_.rows();
  status.groups = groups_.size();
  status.incomplete_groups = groups_.incomplete().size();
  for (const Schema::Column& column : schema_) {
    status.columns.push_back({column.spec.name, column.typed, column.spec.type, column.ready_cells});
  }
  for (const Retainer& retainer : retainers_) status.retain_for.push_back(retainer.name);
  for (uint32_t index : registered_) {
    status.consumers.push_back({consumers_[index]->options().name, consumers_[index]->status()});
  }
  return status;
}

absl::StatusOr<RowStatus> Table::StatusOfRow(RowId row, DescribeCell describe) const {
  TDOCK_ASSIGN_OR_RETURN(const Place place, FindOrError(row));
  const Labels::Label& label = labels_.Of(row);
  const Histories::History& history = histories_.Of(row);
  RowStatus status{.row = row,
                   .group = place.group_id(),
                   .key = label.key,
                   .tags = label.tags == nullptr ? Tags() : *label.tags,
                   .age = history.age,
                   .epoch = history.epoch};
  for (uint32_t column = 0; column < schema_.size(); ++column) {
    status.cells.push_back(StatusOfCell(place, column, describe));
  }
  for (uint32_t index : registered_) status.consumers.push_back(StatusFor(index, place));
  return status;
}

RowCellStatus Table::StatusOfCell(const Place& place, uint32_t column, DescribeCell describe) const {
  RowCellStatus status{.column = schema_[column].spec.name};
  const CellRef cell = place.cell(column);
  if (!cell.there()) return status;
  describe(cell.plain(), status);
  status.state = cell.partial() ? CellState::kPartial : CellState::kReady;
  status.weights_version = VersionsOf(place.row(), column, status.weights_version).oldest;
  return status;
}

RowConsumerStatus Table::StatusFor(uint32_t index, const Place& place) const {
  const Consumer& consumer = *consumers_[index];
  const RowState state = place.state(index);
  RowConsumerStatus status{.consumer = consumer.options().name, .state = DeliveryStateOf(state)};
  for (uint32_t column : consumer.reads()) {
    if (IsWaiting(state) && place.cell(column).empty()) status.missing.push_back(schema_[column].spec.name);
  }
  if (const auto it = consumer.redeliveries.find(place.row()); it != consumer.redeliveries.end()) {
    status.redeliveries = it->second;
  }
  if (state == kLeased) {
    const Lease& lease = leases_.ByKey(place.lease(index));
    status.lease = lease.id;
    status.taken = lease.at;
    status.expires = lease.expires;
  }
  if (state == kUncommitted) status.uncommitted_step = consumer.uncommitted_steps.at(place.row());
  return status;
}

}  // namespace tdock::dock
