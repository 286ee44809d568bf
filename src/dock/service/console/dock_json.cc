#include "dock/service/console/dock_json.h"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tdock/fields.h"

namespace tdock::console {
namespace {

Json NullUnless(bool present, Json value) { return present ? std::move(value) : Json(nullptr); }

Json Seconds(absl::Duration duration) {
  return NullUnless(duration != absl::InfiniteDuration(), absl::ToDoubleSeconds(duration));
}

template <HasFields T>
Json FieldsOf(const T& value, absl::Time now);

Json ValueOf(bool value, absl::Time) { return value; }
Json ValueOf(const std::string& text, absl::Time) { return text; }
Json ValueOf(const Tags& tags, absl::Time) { return tags; }
// Null for an absent version, step or group.
template <class Number>
  requires std::is_integral_v<Number>
Json ValueOf(Number number, absl::Time) {
  return NullUnless(number != static_cast<Number>(-1), number);
}
template <class Enum>
  requires std::is_enum_v<Enum>
Json ValueOf(Enum value, absl::Time) {
  return NamesOf(value)[static_cast<size_t>(value)];
}

Json ValueOf(const ColumnStatus& column, absl::Time) {
  return {{"name", column.name},
          {"type", NullUnless(column.typed, ToString(column.type))},
          {"ready_cells", column.ready_cells}};
}

Json ValueOf(const NamedConsumerStatus& consumer, absl::Time now) {
  Json json = {{"name", consumer.name}};
  json.update(FieldsOf(consumer.status, now));
  return json;
}

Json ValueOf(const RowCellStatus& cell, absl::Time now) {
  Json json = FieldsOf(cell, now);
  if (cell.state == CellState::kEmpty) json["bytes"] = nullptr;
  if (cell.writer.empty()) json["writer"] = nullptr;
  return json;
}

Json ValueOf(const RowConsumerStatus& consumer, absl::Time now) {
  Json json = FieldsOf(consumer, now);
  if (consumer.lease == kNoLease) json["lease"] = nullptr;
  return json;
}

template <class T>
Json ValueOf(const std::vector<T>& values, absl::Time now) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(ValueOf(value, now));
  return list;
}

template <HasFields T>
Json FieldsOf(const T& value, absl::Time now) {
  Json json;
  const auto add = [&](const std::string& name, const auto& field) {
    if constexpr (std::is_same_v<decltype(field), const absl::Time&>) {
      const bool past = name == "taken";
      json[past ? "held_seconds" : "remaining_seconds"] = Seconds(past ? now - field : field - now);
    } else {
      json[name == "consumer" ? "name" : name] = ValueOf(field, now);
    }
  };
  ForEachField(add, value);
  return json;
}

}  // namespace

Json ToJson(absl::string_view name, const PartitionStatus& status) {
  Json json = {{"name", std::string(name)}};
  json.update(FieldsOf(status, absl::Time()));
  // The lists are last.
  for (const char* list : {"retain_for", "columns", "consumers"}) {
    Json values = std::move(json[list]);
    json.erase(list);
    json[list] = std::move(values);
  }
  return json;
}

Json ToJson(const ListedRow& row) { return FieldsOf(row, absl::Time()); }

Json ToJson(const RowStatus& row, absl::Time now) { return FieldsOf(row, now); }

void Write(const Json& json, std::ostream& out) { out << JsonText(json, 2) << "\n"; }

}  // namespace tdock::console
