#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/compare.h"
#include "text/jinja/methods.h"
#include "text/jinja/node.h"

namespace tdock::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result GetMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", ""}, 1));
  TDOCK_RETURN_IF_ERROR(CheckHashable(bound[0]));
  machine.SpendKey(bound[0]);
  const int64_t found = self.AsDict().Find(bound[0]);
  if (found >= 0) return self.AsDict().pairs[static_cast<size_t>(found)].second;
  return IsGiven(bound[1]) ? bound[1] : Value::None();
}

template <DictView::Part part>
Result ViewMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return machine.NewValue<DictView>(self, part);
}

Result CopyMethod(Machine&, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return self;
}

Result CountMethodOfList(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  const auto& items = self.AsItems();
  return Value::Int(std::count_if(items.begin(), items.end(),
                                  [&](const Value& item) { return Equal(item, bound[0], &machine.meter()); }));
}

Result IndexMethodOfList(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 1));
  const auto& items = self.AsItems();
  const auto size = static_cast<int64_t>(items.size());
  int64_t range[2] = {0, size};
  for (size_t i = 0; i < 2; ++i) {
    if (!IsGiven(bound[i + 1])) continue;
    TDOCK_ASSIGN_OR_RETURN(range[i], IntOf(bound[i + 1], "a bound of index()"));
    if (range[i] < 0) range[i] = std::max<int64_t>(0, range[i] + size);
  }
  for (int64_t i = range[0]; i < std::min(range[1], size); ++i) {
    if (Equal(items[static_cast<size_t>(i)], bound[0], &machine.meter())) return Value::Int(i);
  }
  return absl::InvalidArgumentError("the value that index() searches is not in the list");
}

Result BitLength(Machine&, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  const absl::int128 value = ToInt128(self);
  return Value::Int(absl::bit_width(static_cast<uint64_t>(value < 0 ? -value : value)));
}

Result BitCount(Machine&, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  const absl::int128 value = ToInt128(self);
  return Value::Int(absl::popcount(static_cast<uint64_t>(value < 0 ? -value : value)));
}

Result Conjugate(Machine&, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return Negate(self, false);
}

Result IntegerRatio(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return machine.Tuple({self, Value::Int(1)});
}

Result IsInteger(Machine&, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  const double value = self.AsFloat();
  return Value::Bool(std::isfinite(value) && value == std::floor(value));
}

constexpr NamedMethod kDictMethods[] = {{"get", GetMethod},
                                        {"items", ViewMethod<DictView::Part::kItems>},
                                        {"keys", ViewMethod<DictView::Part::kKeys>},
                                        {"values", ViewMethod<DictView::Part::kValues>},
                                        {"copy", CopyMethod}};
constexpr NamedMethod kListMethods[] = {{"index", IndexMethodOfList}, {"count", CountMethodOfList}};
constexpr NamedMethod kListOnlyMethods[] = {{"copy", CopyMethod}};
constexpr NamedMethod kIntegerMethods[] = {
    {"bit_length", BitLength}, {"bit_count", BitCount}, {"conjugate", Conjugate}, {"as_integer_ratio", IntegerRatio}};
constexpr NamedMethod kFloatMethods[] = {{"is_integer", IsInteger}, {"conjugate", Conjugate}};

template <size_t n>
const NamedMethod* FindIn(const NamedMethod (&methods)[n], absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(methods), std::end(methods), [&](const NamedMethod& m) { return m.name == name; });
  return found == std::end(methods) ? nullptr : found;
}

}  // namespace

const NamedMethod* FindDictMethod(absl::string_view name) { return FindIn(kDictMethods, name); }

const NamedMethod* FindListMethod(const Value& list, absl::string_view name) {
  const NamedMethod* const found = FindIn(kListMethods, name);
  return found == nullptr && list.kind() == Value::Kind::kList ? FindIn(kListOnlyMethods, name) : found;
}

const NamedMethod* FindNumberMethod(const Value& number, absl::string_view name) {
  return number.kind() == Value::Kind::kFloat ? FindIn(kFloatMethods, name) : FindIn(kIntegerMethods, name);
}

}  // namespace tdock::jinja
