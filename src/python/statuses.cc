#include "python/statuses.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <string>
#include <type_traits>

#include "python/elements.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

nb::str ToStr(absl::string_view text) { return nb::str(text.data(), text.size()); }

// None for an absent text, version, step or group. Overloads of what follows call each other.
nb::object ToObject(bool value) { return nb::bool_(value); }
nb::object ToObject(const std::string& text) { return text.empty() ? nb::none() : nb::object(ToStr(text)); }
nb::object ToObject(absl::Time time) { return nb::float_(ToUnix(time)); }
template <class Number>
  requires std::is_integral_v<Number>
nb::object ToObject(Number number) {
  static_assert(kNoStep == -1 && kNoWeightsVersion == -1 && kNoGroup == static_cast<GroupId>(-1));
  return number == static_cast<Number>(-1) ? nb::none() : nb::object(nb::int_(number));
}
template <class Enum>
  requires std::is_enum_v<Enum>
nb::object ToObject(Enum value) {
  return ToStr(NamesOf(value)[static_cast<size_t>(value)]);
}

nb::object ToObject(const Tags& tags) {
  nb::dict dict;
  for (const auto& [name, value] : tags) dict[ToStr(name)] = ToStr(value);
  return dict;
}

nb::object ToObject(const ColumnStatus& column) {
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

template <HasFields T>
nb::object ToObject(const T& value) {
  return ToDict(value);
}

nb::object ToObject(const std::vector<NamedConsumerStatus>& consumers) {
  nb::dict dict;
  for (const NamedConsumerStatus& one : consumers) dict[ToStr(one.name)] = ToDict(one.status);
  return dict;
}

template <class T>
nb::object ToObject(const std::vector<T>& values) {
  nb::list list;
  for (const T& value : values) list.append(ToObject(value));
  return list;
}

}  // namespace

double ToUnix(absl::Time time) {
  if (time == absl::InfiniteFuture()) return std::numeric_limits<double>::infinity();
  if (time == absl::InfinitePast()) return -std::numeric_limits<double>::infinity();
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

template <HasFields T>
nb::dict ToDict(const T& value) {
  nb::dict dict;
  ForEachField([&](const char* name, const auto& field) { dict[name] = ToObject(field); }, value);
  if constexpr (std::is_same_v<T, RowConsumerStatus>) {
    for (const char* name : {"lease", "taken", "expires"}) {
      if (value.lease == kNoLease) dict[name] = nb::none();
    }
  }
  return dict;
}

template nb::dict ToDict(const PartitionStatus& status);
template nb::dict ToDict(const ConsumerStatus& status);
template nb::dict ToDict(const RowStatus& status);
template nb::dict ToDict(const ListedRow& row);

}  // namespace tdock::python
