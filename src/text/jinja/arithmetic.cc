#include "text/jinja/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/builder.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/format.h"
#include "text/jinja/node.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {
namespace {

constexpr absl::string_view SymbolOf(Operator op) {
  constexpr absl::string_view kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

absl::Status NotTogether(Operator op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) return absl::InvalidArgumentError(value->undefined_message());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", SymbolOf(op), "' does not go with the types ", TypeName(left), " and ", TypeName(right)));
}

absl::Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }
absl::Status TooLarge() { return absl::InvalidArgumentError("an integer has more than 64 bits"); }

absl::StatusOr<Value> IntegerPower(absl::int128 base, absl::int128 exponent) {
  if (exponent < 0) {
    if (base == 0) return DivisionByZero();
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return FromInt128(exponent == 0 ? absl::int128(1) : base);
  if (base == -1) return Value::Int(exponent % 2 == 0 ? 1 : -1);
  if (exponent > 64) return TooLarge();
  absl::int128 result = 1;
  for (absl::int128 i = 0; i < exponent; ++i) {
    result *= base;
    TDOCK_RETURN_IF_ERROR(FromInt128(result).status());
  }
  return FromInt128(result);
}

absl::StatusOr<Value> CalculateIntegers(Operator op, absl::int128 a, absl::int128 b) {
  const bool divides = op == Operator::kDiv || op == Operator::kFloorDiv || op == Operator::kMod;
  if (divides && b == 0) return DivisionByZero();
  switch (op) {
    case Operator::kAdd:
      return FromInt128(a + b);
    case Operator::kSub:
      return FromInt128(a - b);
    case Operator::kMul:
      // Both below 2^64 in magnitude: only a product of two beyond 2^63 leaves 128 bits.
      if (a != 0 && (b > 0 ? b : -b) > (absl::int128(1) << 65) / (a > 0 ? a : -a)) return TooLarge();
      return FromInt128(a * b);
    case Operator::kDiv:
      return Value::Float(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Operator::kFloorDiv: {
      absl::int128 quotient = a / b;
      if (a % b != 0 && (a < 0) != (b < 0)) --quotient;
      return FromInt128(quotient);
    }
    case Operator::kMod: {
      absl::int128 rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      return FromInt128(rest);
    }
    default:
      return IntegerPower(a, b);
  }
}

double FloatMod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

// As CPython computes it, so that the last bit is the same.
double FloatFloorDiv(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1.0;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1.0;
  return floor;
}

absl::StatusOr<Value> CalculateFloats(Operator op, double a, double b) {
  const bool divides = op == Operator::kDiv || op == Operator::kFloorDiv || op == Operator::kMod;
  if (divides && b == 0) return DivisionByZero();
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSub:
      return Value::Float(a - b);
    case Operator::kMul:
      return Value::Float(a * b);
    case Operator::kDiv:
      return Value::Float(a / b);
    case Operator::kFloorDiv:
      return Value::Float(FloatFloorDiv(a, b));
    case Operator::kMod:
      return Value::Float(FloatMod(a, b));
    default:
      break;
  }
  if (a == 0 && b < 0) return DivisionByZero();
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    return absl::InvalidArgumentError("a power of a negative number is complex, which is not supported");
  }
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
    return absl::InvalidArgumentError("the power is too large for a float");
  return Value::Float(power);
}

absl::StatusOr<Value> Repeat(Machine& machine, const Value& what, int64_t times) {
  Meter& meter = machine.meter();
  if (what.is_text()) {
    const Text& text = what.AsText();
    if (times <= 0 || text.empty()) return machine.String(Text());
    const bool fits = static_cast<uint64_t>(times) < (size_t{1} << 40) / text.size();
    if (!meter.MayHold(fits ? text.size() * static_cast<size_t>(times) : size_t{1} << 50)) return meter.status();
    TextBuilder out(meter);
    for (int64_t i = 0; i < times && out.ok(); ++i) out.Append(text);
    return what.is_markup() ? Value::Markup(out.Take(), &machine.meter()) : machine.String(out.Take());
  }
  const Value::Items& items = what.AsItems();
  Value::Items repeated;
  if (times > 0 && !items.empty()) {
    const bool fits = static_cast<uint64_t>(times) < (size_t{1} << 40) / items.size();
    if (!meter.MayHold(fits ? items.size() * sizeof(Value) * static_cast<size_t>(times) : size_t{1} << 50))
      return meter.status();
    meter.Spend(times * static_cast<int64_t>(items.size()));
    repeated.reserve(items.size() * static_cast<size_t>(times));
    for (int64_t i = 0; i < times; ++i) repeated.insert(repeated.end(), items.begin(), items.end());
  }
  return what.kind() == Value::Kind::kList ? machine.List(std::move(repeated)) : machine.Tuple(std::move(repeated));
}

bool IsRepeatable(const Value& value) { return value.is_text() || value.is_sequence(); }

absl::StatusOr<Value> Join(Machine& machine, const Value& left, const Value& right) {
  if (left.is_text()) {
    const bool is_markup = left.is_markup() || right.is_markup();
    TextBuilder out(machine.meter());
    for (const Value* part : {&left, &right}) {
      out.Append(is_markup && !part->is_markup() ? EscapeHtml(machine.meter(), part->AsText()) : part->AsText());
    }
    return is_markup ? Value::Markup(out.Take(), &machine.meter()) : machine.String(out.Take());
  }
  Value::Items items;
  const size_t size = left.AsItems().size() + right.AsItems().size();
  if (!machine.meter().Spend(static_cast<int64_t>(size)) || !machine.meter().MayHold(size * sizeof(Value))) {
    return machine.meter().status();
  }
  items.reserve(size);
  items.insert(items.end(), left.AsItems().begin(), left.AsItems().end());
  items.insert(items.end(), right.AsItems().begin(), right.AsItems().end());
  return left.kind() == Value::Kind::kList ? machine.List(std::move(items)) : machine.Tuple(std::move(items));
}

}  // namespace

absl::int128 ToInt128(const Value& integer) {
  if (integer.kind() == Value::Kind::kBool) return integer.AsBool() ? 1 : 0;
  return integer.kind() == Value::Kind::kInt ? absl::int128(integer.AsInt()) : absl::int128(integer.AsUint());
}

absl::StatusOr<Value> FromInt128(absl::int128 integer) {
  if (integer >= std::numeric_limits<int64_t>::min() && integer <= std::numeric_limits<int64_t>::max()) {
    return Value::Int(static_cast<int64_t>(integer));
  }
  if (integer > 0 && integer <= absl::int128(std::numeric_limits<uint64_t>::max()))
    return Value::Uint(static_cast<uint64_t>(integer));
  return TooLarge();
}

absl::StatusOr<int64_t> IntOf(const Value& value, absl::string_view what) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  if (!value.is_integer())
    return absl::InvalidArgumentError(absl::StrCat(what, " must be an integer, not of the type ", TypeName(value)));
  if (value.kind() == Value::Kind::kUint)
    return absl::InvalidArgumentError(absl::StrCat(what, " is too large an integer"));
  return static_cast<int64_t>(ToInt128(value));
}

absl::StatusOr<Value> Negate(const Value& value, bool is_negative) {
  if (value.kind() == Value::Kind::kFloat) return Value::Float(is_negative ? -value.AsFloat() : value.AsFloat());
  if (value.is_integer()) return FromInt128(is_negative ? -ToInt128(value) : ToInt128(value));
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(value), " has no sign"));
}

absl::StatusOr<Value> Calculate(Machine& machine, Operator op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return CalculateIntegers(op, ToInt128(left), ToInt128(right));
    return CalculateFloats(op, ToDouble(left), ToDouble(right));
  }
  if (op == Operator::kMod && left.is_text()) {
    TDOCK_ASSIGN_OR_RETURN(Text text, FormatPercent(machine, left.AsText(), right));
    return machine.String(std::move(text));
  }
  if (op == Operator::kAdd && left.kind() == right.kind() && IsRepeatable(left)) return Join(machine, left, right);
  if (op == Operator::kMul && IsRepeatable(left) && right.is_integer()) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t times, IntOf(right, "how often something is repeated"));
    return Repeat(machine, left, times);
  }
  if (op == Operator::kMul && IsRepeatable(right) && left.is_integer()) return Calculate(machine, op, right, left);
  return NotTogether(op, left, right);
}

absl::StatusOr<bool> Contains(Machine& machine, const Value& container, const Value& item) {
  Meter& meter = machine.meter();
  if (container.is_text()) {
    if (item.is_undefined())
      return absl::InvalidArgumentError("'in' needs a string on its left, not an undefined value");
    if (!item.is_text())
      return absl::InvalidArgumentError(
          absl::StrCat("'in' with a string needs a string on its left, not of the type ", TypeName(item)));
    meter.SpendBytes(container.AsText().size());
    return FindBytes(container.AsText().bytes(), item.AsText().bytes()) != absl::string_view::npos;
  }
  if (container.is_dict()) {
    TDOCK_RETURN_IF_ERROR(CheckHashable(item));
    machine.SpendKey(item);
    return container.AsDict().Find(item) >= 0;
  }
  if (container.is_sequence()) {
    const auto equals = [&](const Value& other) { return meter.failed() || Equal(other, item, &meter); };
    return std::any_of(container.AsItems().begin(), container.AsItems().end(), equals);
  }
  TDOCK_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(container));
  while (true) {
    TDOCK_ASSIGN_OR_RETURN(const auto next, iteration.Next(machine));
    if (meter.failed()) return meter.status();
    if (!next) return false;
    if (Equal(*next, item, &meter)) return true;
  }
}

absl::StatusOr<bool> CompareBy(Machine& machine, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kEq || op == Operator::kNe) return Equal(left, right, &machine.meter()) == (op == Operator::kEq);
  if (op == Operator::kIn || op == Operator::kNotIn) {
    TDOCK_ASSIGN_OR_RETURN(const bool contains, Contains(machine, right, left));
    return contains == (op == Operator::kIn);
  }
  TDOCK_ASSIGN_OR_RETURN(const std::optional<int> order, Compare(left, right, machine.meter()));
  if (!order) return false;
  switch (op) {
    case Operator::kLt:
      return *order < 0;
    case Operator::kLe:
      return *order <= 0;
    case Operator::kGt:
      return *order > 0;
    default:
      return *order >= 0;
  }
}

namespace {

// Where a slice begins, which way it goes and how many items it has (PySlice_AdjustIndices).
struct Steps {
  int64_t begin, step, count;
};

absl::StatusOr<Steps> Adjust(const SliceBounds& bounds, int64_t length) {
  const int64_t step = std::clamp<int64_t>(bounds.step.value_or(1), -INT64_MAX, INT64_MAX);
  if (step == 0) return absl::InvalidArgumentError("the step of a slice cannot be zero");
  const auto adjusted = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    if (*bound < 0) return *bound < -length ? (step < 0 ? int64_t{-1} : int64_t{0}) : *bound + length;
    return *bound >= length ? (step < 0 ? length - 1 : length) : *bound;
  };
  const int64_t begin = adjusted(bounds.begin, step < 0 ? length - 1 : 0);
  const int64_t end = adjusted(bounds.end, step < 0 ? -1 : length);
  int64_t count = 0;
  if (step > 0 && begin < end) count = (end - begin - 1) / step + 1;
  if (step < 0 && end < begin) count = (begin - end - 1) / -step + 1;
  return Steps{begin, step, count};
}

Text SliceText(const Text& text, const Steps& steps) {
  const absl::string_view bytes = text.bytes();
  if (steps.step == 1) {
    const size_t begin = OffsetOf(bytes, steps.begin);
    return text.Substr(begin, begin + OffsetOf(bytes.substr(begin), steps.count));
  }
  std::vector<size_t> offsets;
  for (size_t at = 0; at < bytes.size(); at += CharacterAt(bytes, at).bytes) offsets.push_back(at);
  Text part;
  for (int64_t i = 0; i < steps.count; ++i) {
    const size_t at = offsets[static_cast<size_t>(steps.begin + i * steps.step)];
    part.Append(text, at, at + CharacterAt(bytes, at).bytes);
  }
  return part;
}

}  // namespace

absl::StatusOr<Value> SliceOf(Machine& machine, const Value& value, const SliceBounds& bounds) {
  if (value.is_text()) {
    const Text& text = value.AsText();
    machine.meter().SpendBytes(text.size());
    // Slices with another step than 1 hold the place of each character.
    const bool fits = bounds.step.value_or(1) == 1 || machine.meter().MayHold(text.size() * sizeof(size_t));
    if (!fits || machine.meter().failed()) return machine.meter().status();
    TDOCK_ASSIGN_OR_RETURN(const Steps steps, Adjust(bounds, CountCharacters(text.bytes())));
    return machine.String(SliceText(text, steps));
  }
  if (value.is_sequence()) {
    const Value::Items& items = value.AsItems();
    TDOCK_ASSIGN_OR_RETURN(const Steps steps, Adjust(bounds, static_cast<int64_t>(items.size())));
    if (!machine.meter().MayHold(static_cast<size_t>(steps.count) * sizeof(Value))) return machine.meter().status();
    Value::Items part;
    part.reserve(static_cast<size_t>(steps.count));
    for (int64_t i = 0; i < steps.count; ++i) part.push_back(items[static_cast<size_t>(steps.begin + i * steps.step)]);
    return value.kind() == Value::Kind::kList ? machine.List(std::move(part)) : machine.Tuple(std::move(part));
  }
  if (const auto* const range = As<RangeObject>(value, Object::Type::kRange)) {
    TDOCK_ASSIGN_OR_RETURN(const Steps steps, Adjust(bounds, range->length));
    const absl::int128 step = absl::int128(range->step) * steps.step;
    const absl::int128 begin = range->begin + absl::int128(steps.begin) * range->step;
    const absl::int128 end = begin + step * steps.count;
    if (!FromInt128(step).ok() || !FromInt128(end).ok()) return TooLarge();
    return machine.NewValue<RangeObject>(static_cast<int64_t>(begin), static_cast<int64_t>(end),
                                         static_cast<int64_t>(step), steps.count);
  }
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(value), " has no slices"));
}

}  // namespace tdock::jinja
