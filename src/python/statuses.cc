#include "python/statuses.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <string>

#include "python/elements.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

nb::object OrNone(int64_t number, int64_t none) { return number == none ? nb::none() : nb::object(nb::int_(number)); }

nb::object OrNone(const std::string& text) { return text.empty() ? nb::none() : nb::object(nb::str(text.c_str())); }

nb::object Group(GroupId group) { return group == kNoGroup ? nb::none() : nb::object(nb::int_(group)); }

nb::dict ToDict(const Tags& tags) {
  nb::dict dict;
  for (const auto& [name, value] : tags) dict[name.c_str()] = value;
  return dict;
}

nb::list ToList(const std::vector<std::string>& strings) {
  nb::list list;
  for (const std::string& one : strings) list.append(one);
  return list;
}

nb::str ToStr(absl::string_view name) { return nb::str(name.data(), name.size()); }

nb::dict ToDict(const RowCellStatus& cell) {
  nb::dict dict;
  dict["column"] = cell.column;
  dict["state"] = ToStr(CellStateName(cell.state));
  dict["bytes"] = cell.bytes;
  dict["weights_version"] = OrNone(cell.weights_version, kNoWeightsVersion);
  dict["writer"] = OrNone(cell.writer);
  return dict;
}

nb::dict ToDict(const RowConsumerStatus& consumer) {
  const bool leased = consumer.state == DeliveryState::kLeased;
  nb::dict dict;
  dict["consumer"] = consumer.consumer;
  dict["state"] = ToStr(DeliveryStateName(consumer.state));
  dict["missing"] = ToList(consumer.missing);
  dict["redeliveries"] = consumer.redeliveries;
  dict["lease"] = leased ? nb::object(nb::int_(consumer.lease)) : nb::none();
  dict["taken"] = leased ? nb::object(nb::float_(ToUnix(consumer.taken))) : nb::none();
  dict["expires"] = leased ? nb::object(nb::float_(ToUnix(consumer.expires))) : nb::none();
  dict["uncommitted_step"] = OrNone(consumer.uncommitted_step, kNoStep);
  return dict;
}

nb::dict ToDict(const ColumnStatus& column) {
  nb::list shape;
  for (const int64_t size : column.type.row_shape) shape.append(size);
  const bool numbers = column.type.kind != ColumnKind::kBytes;
  nb::dict dict;
  dict["name"] = column.name;
  dict["kind"] = column.typed ? nb::object(nb::str(KindName(column.type).data())) : nb::none();
  dict["dtype"] = column.typed && numbers ? nb::object(ToStr(Name(column.type.dtype))) : nb::none();
  dict["row_shape"] = nb::tuple(shape);
  dict["ready_cells"] = column.ready_cells;
  return dict;
}

}  // namespace

double ToUnix(absl::Time time) {
  if (time == absl::InfiniteFuture()) return std::numeric_limits<double>::infinity();
  if (time == absl::InfinitePast()) return -std::numeric_limits<double>::infinity();
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

nb::dict ToDict(const ConsumerStatus& status) {
  nb::dict dict;
  dict["waiting"] = status.waiting;
  dict["ready"] = status.ready;
  dict["leased"] = status.leased;
  dict["quarantined"] = status.quarantined;
  dict["done"] = status.done;
  dict["uncommitted"] = status.uncommitted;
  dict["committed_step"] = OrNone(status.committed_step, kNoStep);
  dict["takeable"] = status.takeable;
  dict["completed"] = status.completed;
  dict["expired"] = status.expired;
  dict["unfinished"] = status.unfinished;
  dict["sent_back"] = status.sent_back;
  dict["stale_dropped"] = status.stale_dropped;
  dict["reset"] = status.reset;
  return dict;
}

nb::dict ToDict(const PartitionStatus& status) {
  nb::list columns;
  for (const ColumnStatus& column : status.columns) columns.append(ToDict(column));
  nb::dict consumers;
  for (const NamedConsumerStatus& one : status.consumers) consumers[one.name.c_str()] = ToDict(one.status);
  nb::dict dict;
  dict["sealed"] = status.sealed;
  dict["weights_version"] = OrNone(status.weights_version, kNoWeightsVersion);
  dict["rows"] = status.rows;
  dict["groups"] = status.groups;
  dict["incomplete_groups"] = status.incomplete_groups;
  dict["retain_for"] = ToList(status.retain_for);
  dict["held_bytes"] = status.held_bytes;
  dict["columns"] = columns;
  dict["consumers"] = consumers;
  return dict;
}

nb::dict ToDict(const RowStatus& status) {
  nb::list cells, consumers;
  for (const RowCellStatus& cell : status.cells) cells.append(ToDict(cell));
  for (const RowConsumerStatus& consumer : status.consumers) consumers.append(ToDict(consumer));
  nb::dict dict;
  dict["row"] = status.row;
  dict["group"] = Group(status.group);
  dict["key"] = OrNone(status.key);
  dict["tags"] = ToDict(status.tags);
  dict["age"] = status.age;
  dict["epoch"] = status.epoch;
  dict["cells"] = cells;
  dict["consumers"] = consumers;
  return dict;
}

nb::dict ToDict(const ListedRow& row) {
  nb::dict dict;
  dict["row"] = row.row;
  dict["group"] = Group(row.group);
  dict["key"] = OrNone(row.key);
  dict["tags"] = ToDict(row.tags);
  dict["age"] = row.age;
  dict["epoch"] = row.epoch;
  return dict;
}

}  // namespace tdock::python
