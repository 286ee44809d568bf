#include "text/jinja/predicates.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {
namespace {

using Holds = absl::StatusOr<bool>;
using Kind = Value::Kind;

// Tests that only look at the value.
template <bool (*holds)(const Value&)>
Holds Simple(Machine&, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return holds(input);
}

bool IsDefined(const Value& value) { return !value.is_undefined(); }
bool IsUndefined(const Value& value) { return value.is_undefined(); }
bool IsNone(const Value& value) { return value.kind() == Kind::kNone; }
bool IsBoolean(const Value& value) { return value.kind() == Kind::kBool; }
bool IsFalseItself(const Value& value) { return value.kind() == Kind::kBool && !value.AsBool(); }
bool IsTrueItself(const Value& value) { return value.kind() == Kind::kBool && value.AsBool(); }
bool IsIntegerValue(const Value& value) { return value.kind() == Kind::kInt || value.kind() == Kind::kUint; }
bool IsFloatValue(const Value& value) { return value.kind() == Kind::kFloat; }
bool IsNumberValue(const Value& value) { return value.is_number(); }
bool IsStringValue(const Value& value) { return value.is_text(); }
bool IsMapping(const Value& value) { return value.is_dict(); }
bool IsEscaped(const Value& value) { return value.is_markup(); }
bool IsIterable(const Value& value) { return Iteration::Over(value).ok(); }

bool IsSequence(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.is_dict() ||
         As<RangeObject>(value, Object::Type::kRange) != nullptr;
}

bool IsCallable(const Value& value) {
  if (value.is_undefined()) return true;  // jinja2's Undefined has a __call__, which fails
  if (value.kind() != Kind::kObject) return false;
  switch (value.AsObject().type()) {
    case Object::Type::kMacro:
    case Object::Type::kLoop:
    case Object::Type::kJoiner:
    case Object::Type::kMethod:
    case Object::Type::kFunction:
      return true;
    default:
      return false;
  }
}

template <bool is_odd>
Holds Parity(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(const Value rest, Calculate(machine, Operator::kMod, input, Value::Int(2)));
  return Equal(rest, Value::Int(is_odd ? 1 : 0), &machine.meter());
}

Holds DivisibleBy(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"num"}, 1));
  TDOCK_ASSIGN_OR_RETURN(const Value rest, Calculate(machine, Operator::kMod, input, bound[0]));
  return Equal(rest, Value::Int(0), &machine.meter());
}

template <bool is_upper>
Holds CaseTest(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(Text text, Str(machine, input));
  Arguments none;
  TDOCK_ASSIGN_OR_RETURN(const Value holds,
                         CallMethod(machine, machine.String(std::move(text)), is_upper ? "isupper" : "islower", none));
  return holds.AsBool();
}

template <Operator op>
Holds Comparison(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  return CompareBy(machine, op, input, bound[0]);
}

Holds InTest(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"seq"}, 1));
  return Contains(machine, bound[0], input);
}

Holds SameAs(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"other"}, 1));
  const Value& other = bound[0];
  if (input.kind() != other.kind()) return false;
  switch (input.kind()) {
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return input.is_same(other);
    default:
      return Equal(input, other, &machine.meter());
  }
}

Holds IsFilter(Machine&, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_RETURN_IF_ERROR(CheckHashable(input));
  return input.is_text() && FindFilter(input.AsText().bytes()) != nullptr;
}

Holds IsTest(Machine&, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_RETURN_IF_ERROR(CheckHashable(input));
  return input.is_text() && FindPredicate(input.AsText().bytes()) != nullptr;
}

constexpr Predicate kPredicates[] = {{"defined", Simple<IsDefined>},
                                     {"undefined", Simple<IsUndefined>},
                                     {"none", Simple<IsNone>},
                                     {"string", Simple<IsStringValue>},
                                     {"mapping", Simple<IsMapping>},
                                     {"iterable", Simple<IsIterable>},
                                     {"sequence", Simple<IsSequence>},
                                     {"true", Simple<IsTrueItself>},
                                     {"false", Simple<IsFalseItself>},
                                     {"boolean", Simple<IsBoolean>},
                                     {"integer", Simple<IsIntegerValue>},
                                     {"float", Simple<IsFloatValue>},
                                     {"number", Simple<IsNumberValue>},
                                     {"callable", Simple<IsCallable>},
                                     {"escaped", Simple<IsEscaped>},
                                     {"odd", Parity<true>},
                                     {"even", Parity<false>},
                                     {"divisibleby", DivisibleBy},
                                     {"lower", CaseTest<false>},
                                     {"upper", CaseTest<true>},
                                     {"sameas", SameAs},
                                     {"in", InTest},
                                     {"filter", IsFilter},
                                     {"test", IsTest},
                                     {"eq", Comparison<Operator::kEq>},
                                     {"==", Comparison<Operator::kEq>},
                                     {"equalto", Comparison<Operator::kEq>},
                                     {"ne", Comparison<Operator::kNe>},
                                     {"!=", Comparison<Operator::kNe>},
                                     {"gt", Comparison<Operator::kGt>},
                                     {">", Comparison<Operator::kGt>},
                                     {"greaterthan", Comparison<Operator::kGt>},
                                     {"ge", Comparison<Operator::kGe>},
                                     {">=", Comparison<Operator::kGe>},
                                     {"lt", Comparison<Operator::kLt>},
                                     {"<", Comparison<Operator::kLt>},
                                     {"lessthan", Comparison<Operator::kLt>},
                                     {"le", Comparison<Operator::kLe>},
                                     {"<=", Comparison<Operator::kLe>}};

}  // namespace

const Predicate* FindPredicate(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kPredicates), std::end(kPredicates), [&](const Predicate& p) { return p.name == name; });
  return found == std::end(kPredicates) ? nullptr : found;
}

}  // namespace tdock::jinja
