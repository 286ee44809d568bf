#include "dock/service/console/dock_json.h"

#include <string>

namespace tdock::console {
namespace {

Json NullUnless(bool present, Json value) { return present ? std::move(value) : Json(nullptr); }

Json ConsumerJson(const NamedConsumerStatus& consumer) {
  const ConsumerStatus& status = consumer.status;
  return {{"name", consumer.name},
          {"waiting", status.waiting},
          {"ready", status.ready},
          {"leased", status.leased},
          {"quarantined", status.quarantined},
          {"done", status.done},
          {"uncommitted", status.uncommitted},
          {"committed_step", NullUnless(status.committed_step != kNoStep, status.committed_step)},
          {"takeable", status.takeable},
          {"completed", status.completed},
          {"expired", status.expired},
          {"unfinished", status.unfinished},
          {"sent_back", status.sent_back},
          {"stale_dropped", status.stale_dropped},
          {"reset", status.reset}};
}

Json CellJson(const RowCellStatus& cell) {
  return {{"column", cell.column},
          {"state", CellStateName(cell.state)},
          {"bytes", NullUnless(cell.state != CellState::kEmpty, cell.bytes)},
          {"weights_version", NullUnless(cell.weights_version != kNoWeightsVersion, cell.weights_version)},
          {"writer", NullUnless(!cell.writer.empty(), cell.writer)}};
}

Json Seconds(absl::Duration duration) {
  return NullUnless(duration != absl::InfiniteDuration(), absl::ToDoubleSeconds(duration));
}

Json DeliveryJson(const RowConsumerStatus& consumer, absl::Time now) {
  const bool leased = consumer.lease != kNoLease;
  return {{"name", consumer.consumer},
          {"state", DeliveryStateName(consumer.state)},
          {"missing", consumer.missing},
          {"redeliveries", consumer.redeliveries},
          {"lease", NullUnless(leased, consumer.lease)},
          {"held_seconds", leased ? Seconds(now - consumer.taken) : Json(nullptr)},
          {"remaining_seconds", leased ? Seconds(consumer.expires - now) : Json(nullptr)},
          {"uncommitted_step", NullUnless(consumer.uncommitted_step != kNoStep, consumer.uncommitted_step)}};
}

}  // namespace

Json ToJson(absl::string_view name, const PartitionStatus& status) {
  Json columns = Json::array(), consumers = Json::array();
  for (const ColumnStatus& column : status.columns) {
    columns.push_back({{"name", column.name},
                       {"type", NullUnless(column.typed, ToString(column.type))},
                       {"ready_cells", column.ready_cells}});
  }
  for (const NamedConsumerStatus& consumer : status.consumers) consumers.push_back(ConsumerJson(consumer));
  const bool published = status.weights_version != kNoWeightsVersion;
  return {{"name", std::string(name)},
          {"sealed", status.sealed},
          {"weights_version", NullUnless(published, status.weights_version)},
          {"rows", status.rows},
          {"groups", status.groups},
          {"incomplete_groups", status.incomplete_groups},
          {"held_bytes", status.held_bytes},
          {"retain_for", status.retain_for},
          {"columns", std::move(columns)},
          {"consumers", std::move(consumers)}};
}

Json ToJson(const ListedRow& row) {
  return {{"row", row.row}, {"group", NullUnless(row.group != kNoGroup, row.group)},
          {"key", row.key}, {"tags", row.tags},
          {"age", row.age}, {"epoch", row.epoch}};
}

Json ToJson(const RowStatus& row, absl::Time now) {
  Json cells = Json::array(), consumers = Json::array();
  for (const RowCellStatus& cell : row.cells) cells.push_back(CellJson(cell));
  for (const RowConsumerStatus& consumer : row.consumers) consumers.push_back(DeliveryJson(consumer, now));
  return {{"row", row.row},
          {"group", NullUnless(row.group != kNoGroup, row.group)},
          {"key", row.key},
          {"tags", row.tags},
          {"age", row.age},
          {"epoch", row.epoch},
          {"cells", std::move(cells)},
          {"consumers", std::move(consumers)}};
}

void Write(const Json& json, std::ostream& out) { out << JsonText(json, 2) << "\n"; }

}  // namespace tdock::console
