#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/builder.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/filter_lists.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/numbers.h"
#include "text/jinja/repr.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {

AttributePath::AttributePath(Machine& machine, const Value& attribute) {
  if (!IsGivenAndNotNone(attribute)) return;
  if (!attribute.is_text()) {
    parts_.push_back(attribute);
    return;
  }
  for (const absl::string_view part : absl::StrSplit(attribute.AsText().bytes(), '.')) {
    if (!machine.meter().Spend(1)) return;
    int64_t number = 0;
    const bool is_number =
        !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit) && absl::SimpleAtoi(part, &number);
    parts_.push_back(is_number ? Value::Int(number) : machine.String(part));
  }
}

absl::StatusOr<Value> AttributePath::Of(Machine& machine, const Value& item, const Value& otherwise) const {
  Value value = item;
  for (const Value& part : parts_) {
    if (!machine.meter().Spend(1)) return machine.meter().status();
    TDOCK_ASSIGN_OR_RETURN(value, GetItem(machine, value, part));
    if (value.is_undefined() && IsGivenAndNotNone(otherwise)) value = otherwise;
  }
  return value;
}

Value CaseKey(Machine& machine, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_text()) return value;
  machine.meter().SpendBytes(value.AsText().size());
  return machine.String(Lower(value.AsText()));
}

namespace {

using Result = absl::StatusOr<Value>;
using Keyed = std::pair<std::vector<Value>, Value>;  // what an item is sorted by, and the item

// Stable, as Python's sorted(). `keys_are_lists` compares as lists are compared: what is equal needs no order.
absl::Status SortByKeys(Machine& machine, bool reverse, bool keys_are_lists, std::vector<Keyed>& keyed) {
  absl::Status status;
  const auto is_less = [&](const Keyed& left, const Keyed& right) {
    for (size_t i = 0; status.ok() && i < left.first.size(); ++i) {
      if (keys_are_lists && Equal(left.first[i], right.first[i], &machine.meter())) continue;
      const auto order = Compare(left.first[i], right.first[i], machine.meter());
      status.Update(order.status());
      return order.ok() && *order && **order < 0;
    }
    return false;
  };
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  std::stable_sort(keyed.begin(), keyed.end(), is_less);
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  return status;
}

Value ItemsOnly(Machine& machine, std::vector<Keyed> keyed) {
  Value::Items items;
  items.reserve(keyed.size());
  for (auto& [keys, item] : keyed) items.push_back(std::move(item));
  return machine.List(std::move(items));
}

Result Sort(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"reverse", "case_sensitive", "attribute"}));
  std::vector<AttributePath> paths;
  if (IsGiven(bound[2]) && bound[2].is_text()) {
    for (const absl::string_view part : absl::StrSplit(bound[2].AsText().bytes(), ',')) {
      if (!machine.meter().Spend(1)) return machine.meter().status();
      paths.emplace_back(machine, machine.String(part));
    }
  } else {
    paths.emplace_back(machine, bound[2]);
  }
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, input));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      TDOCK_ASSIGN_OR_RETURN(const Value key, path.Of(machine, item));
      keys.push_back(CaseKey(machine, key, IsTrue(bound[1])));
    }
    keyed.emplace_back(std::move(keys), item);
  }
  TDOCK_RETURN_IF_ERROR(SortByKeys(machine, IsTrue(bound[0]), /*keys_are_lists=*/true, keyed));
  return ItemsOnly(machine, std::move(keyed));
}

Result DictSort(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"case_sensitive", "by", "reverse"}));
  const absl::string_view by = !IsGiven(bound[1]) ? "key" : bound[1].is_text() ? bound[1].AsText().bytes() : "";
  if (by != "key" && by != "value") return absl::InvalidArgumentError("a dict is sorted by \"key\" or by \"value\"");
  if (input.is_undefined()) return absl::InvalidArgumentError(input.undefined_message());
  if (!input.is_dict())
    return absl::InvalidArgumentError(absl::StrCat("dictsort needs a dict, not a value of the type ", TypeName(input)));
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : input.AsDict().pairs) {
    keyed.push_back({{CaseKey(machine, by == "key" ? key : value, IsTrue(bound[0]))}, machine.Tuple({key, value})});
  }
  TDOCK_RETURN_IF_ERROR(SortByKeys(machine, IsTrue(bound[2]), /*keys_are_lists=*/false, keyed));
  return ItemsOnly(machine, std::move(keyed));
}

Result GroupBy(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"attribute", "default", "case_sensitive"}, 1));
  const AttributePath path(machine, bound[0]);
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, input));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    TDOCK_ASSIGN_OR_RETURN(const Value key, path.Of(machine, item, bound[1]));
    keyed.push_back({{CaseKey(machine, key, IsTrue(bound[2]))}, item});
  }
  TDOCK_RETURN_IF_ERROR(SortByKeys(machine, /*reverse=*/false, /*keys_are_lists=*/false, keyed));
  Value::Items groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    Value::Items members;
    for (end = begin; end < keyed.size() && Equal(keyed[end].first[0], keyed[begin].first[0], &machine.meter());
         ++end) {
      members.push_back(keyed[end].second);
    }
    if (end == begin) members.push_back(keyed[end++].second);  // equal not even to itself
    TDOCK_ASSIGN_OR_RETURN(const Value grouper, path.Of(machine, members[0], bound[1]));
    groups.push_back(Value::Group(grouper, machine.List(std::move(members)), &machine.meter()));
  }
  return machine.List(std::move(groups));
}

template <bool wants_greatest>
Result Extreme(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"case_sensitive", "attribute"}));
  const AttributePath path(machine, bound[1]);
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, input));
  if (items.empty()) return machine.Undefined("there is no least or greatest item of nothing");
  std::optional<Keyed> best;
  for (const Value& item : items) {
    TDOCK_ASSIGN_OR_RETURN(Value key, path.Of(machine, item));
    key = CaseKey(machine, key, IsTrue(bound[0]));
    if (best) {
      TDOCK_ASSIGN_OR_RETURN(const auto order, Compare(key, best->first[0], machine.meter()));
      if (!order || (wants_greatest ? *order <= 0 : *order >= 0)) continue;
    }
    best = Keyed{{std::move(key)}, item};
  }
  return best->second;
}

Result Sum(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"attribute", "start"}));
  const AttributePath path(machine, bound[0]);
  Value sum = IsGiven(bound[1]) ? bound[1] : Value::Int(0);
  if (sum.is_text()) return absl::InvalidArgumentError("sum does not add strings; use the filter join");
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, input));
  for (const Value& item : items) {
    TDOCK_ASSIGN_OR_RETURN(const Value value, path.Of(machine, item));
    TDOCK_ASSIGN_OR_RETURN(sum, Calculate(machine, Operator::kAdd, sum, value));
    if (machine.meter().failed()) return machine.meter().status();
  }
  return sum;
}

Result JoinFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"d", "attribute"}));
  Text separator;
  if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(separator, Str(machine, bound[0]));
  }
  const AttributePath path(machine, bound[1]);
  TDOCK_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(input));
  TextBuilder out(machine.meter());
  for (bool is_first = true; out.ok(); is_first = false) {
    TDOCK_ASSIGN_OR_RETURN(const auto item, iteration.Next(machine));
    if (!item) break;
    machine.meter().Spend(1);
    TDOCK_ASSIGN_OR_RETURN(const Value value, path.Of(machine, *item));
    TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, value));
    if (!is_first) out.Append(separator);
    out.Append(text);
  }
  return machine.String(out.Take());
}

Result Length(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(const int64_t length, LengthOf(machine, input));
  return Value::Int(length);
}

Result First(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(input));
  TDOCK_ASSIGN_OR_RETURN(auto item, iteration.Next(machine));
  return item ? *std::move(item) : machine.Undefined("there is no first item of nothing");
}

bool IsReversible(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.is_dict() ||
         As<RangeObject>(value, Object::Type::kRange) != nullptr ||
         As<DictView>(value, Object::Type::kDictView) != nullptr;
}

Result Last(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (!IsReversible(input))
    return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(input), " has no last item"));
  if (input.is_sequence() && !input.AsItems().empty()) return input.AsItems().back();
  TDOCK_ASSIGN_OR_RETURN(auto items, ItemsOf(machine, input));
  return items.empty() ? machine.Undefined("there is no last item of nothing") : std::move(items.back());
}

class Listed final : public Generator {
 public:
  explicit Listed(std::vector<Value> items) : items_(std::move(items)) {}  // the next is the last
  absl::StatusOr<std::optional<Value>> Next(Machine&) override {
    if (items_.empty()) return std::nullopt;
    Value item = std::move(items_.back());
    items_.pop_back();
    return item;
  }

 private:
  std::vector<Value> items_;
};

Result Reverse(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.is_text()) return SliceOf(machine, input, {std::nullopt, std::nullopt, -1});
  TDOCK_ASSIGN_OR_RETURN(auto items, ItemsOf(machine, input));
  if (!IsReversible(input)) {
    std::reverse(items.begin(), items.end());
    return machine.List(std::move(items));
  }
  machine.meter().Hold(items.size() * sizeof(Value));
  return machine.NewValue<Listed>(std::move(items));
}

Result ListFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(auto items, ItemsOf(machine, input));
  return machine.List(std::move(items));
}

Result Default(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default_value", "boolean"}));
  if (!input.is_undefined() && (!IsTrue(bound[1]) || IsTrue(input))) return input;
  return IsGiven(bound[0]) ? bound[0] : machine.String("");
}

Result Attr(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"name"}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "the name of an attribute"));
  return GetOnlyAttribute(machine, input, bound[0]);
}

Result Abs(Machine&, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.kind() == Value::Kind::kFloat) return Value::Float(std::abs(input.AsFloat()));
  return Negate(input, input.kind() == Value::Kind::kInt && input.AsInt() < 0);
}

Result Round(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"precision", "method"}));
  const absl::string_view method = !IsGiven(bound[1]) ? "common" : bound[1].is_text() ? bound[1].AsText().bytes() : "";
  if (method != "common" && method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("the method of rounding must be \"common\", \"ceil\" or \"floor\"");
  }
  int64_t precision = 0;
  if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(precision, IntOf(bound[0], "precision"));
  }
  TDOCK_ASSIGN_OR_RETURN(const Value number, Negate(input, false));
  if (method == "common") {
    if (!number.is_integer()) return Value::Float(RoundedFloat(number.AsFloat(), precision));
    if (precision >= 0) return number;
    if (precision < -20) return Value::Int(0);
    absl::int128 power = 1;
    for (int64_t i = 0; i < -precision; ++i) power *= 10;
    const absl::int128 value = ToInt128(number);
    absl::int128 rest = value % power;
    if (rest < 0) rest += power;
    const absl::int128 low = value - rest;
    const bool up = rest * 2 > power || (rest * 2 == power && (low / power) % 2 != 0);
    return FromInt128(up ? low + power : low);
  }
  TDOCK_ASSIGN_OR_RETURN(const Value power, Calculate(machine, Operator::kPow, Value::Int(10), Value::Int(precision)));
  TDOCK_ASSIGN_OR_RETURN(const Value scaled, Calculate(machine, Operator::kMul, number, power));
  Value whole = scaled;
  if (!scaled.is_integer()) {
    TDOCK_ASSIGN_OR_RETURN(
        whole, TruncatedFloat(method == "ceil" ? std::ceil(scaled.AsFloat()) : std::floor(scaled.AsFloat())));
  }
  return Calculate(machine, Operator::kDiv, whole, power);
}

Result FileSize(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"binary"}));
  const std::optional<double> bytes = ParseFloat(input);
  if (!bytes) return absl::InvalidArgumentError("filesizeformat needs a number");
  const bool is_binary = IsTrue(bound[0]);
  const double base = is_binary ? 1024 : 1000;
  if (*bytes == 1) return machine.String("1 Byte");
  if (*bytes < base) {
    TDOCK_ASSIGN_OR_RETURN(const Value whole, TruncatedFloat(*bytes));
    TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, whole));
    return machine.String(absl::StrCat(text.bytes(), " Bytes"));
  }
  constexpr absl::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  do {
    unit *= base;
  } while (*bytes >= unit && ++i < kPrefixes.size());
  i = std::min(i, kPrefixes.size() - 1);
  const std::string prefix = is_binary ? absl::StrCat(i == 0 ? "K" : std::string(1, kPrefixes[i]), "iB")
                                       : absl::StrCat(std::string(1, kPrefixes[i]), "B");
  return machine.String(absl::StrFormat("%.1f %s", base * *bytes / unit, prefix));
}

Result NotSupported(Machine&, const Value&, Arguments&) {
  return absl::UnimplementedError("this filter of Jinja is not supported in a chat template");
}

constexpr Filter kSequenceFilters[] = {{"length", Length},
                                       {"count", Length},
                                       {"list", ListFilter},
                                       {"join", JoinFilter},
                                       {"default", Default},
                                       {"d", Default},
                                       {"first", First},
                                       {"last", Last},
                                       {"sort", Sort},
                                       {"dictsort", DictSort},
                                       {"groupby", GroupBy},
                                       {"min", Extreme<false>},
                                       {"max", Extreme<true>},
                                       {"sum", Sum},
                                       {"reverse", Reverse},
                                       {"attr", Attr},
                                       {"abs", Abs},
                                       {"round", Round},
                                       {"filesizeformat", FileSize},
                                       {"pprint", NotSupported},
                                       {"striptags", NotSupported},
                                       {"urlize", NotSupported},
                                       {"wordwrap", NotSupported},
                                       {"xmlattr", NotSupported}};

}  // namespace

absl::Span<const Filter> FiltersOfSequences() { return kSequenceFilters; }

const Filter* FindFilter(absl::string_view name) {
  for (const auto filters : {FiltersOfText(), FiltersOfSequences(), LazyFilters()}) {
    for (const Filter& filter : filters) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

}  // namespace tdock::jinja
