#include "text/jinja/compare.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/node.h"
#include "text/jinja/object.h"

namespace tdock::jinja {
namespace {

// Wide enough for every integer and every double.
static_assert(std::numeric_limits<long double>::digits >= 64, "comparisons of numbers would lose bits");

long double Exact(const Value& number) {
  switch (number.kind()) {
    case Value::Kind::kBool:
      return number.AsBool() ? 1 : 0;
    case Value::Kind::kInt:
      return static_cast<long double>(number.AsInt());
    case Value::Kind::kUint:
      return static_cast<long double>(number.AsUint());
    default:
      return static_cast<long double>(number.AsFloat());
  }
}

bool EqualItems(const Value::Items& a, const Value::Items& b, Meter* meter) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](const Value& x, const Value& y) { return Equal(x, y, meter); });
}

bool EqualDicts(const DictNode& a, const DictNode& b, Meter* meter) {
  if (&a == &b) return true;
  if (a.pairs.size() != b.pairs.size()) return false;
  return std::all_of(a.pairs.begin(), a.pairs.end(), [&](const auto& pair) {
    const int64_t found = b.Find(pair.first);
    return found >= 0 && Equal(pair.second, b.pairs[static_cast<size_t>(found)].second, meter);
  });
}

bool EqualObjects(const Value& a, const Value& b) {
  if (&a.AsObject() == &b.AsObject()) return true;
  const auto* const x = As<RangeObject>(a, Object::Type::kRange);
  const auto* const y = As<RangeObject>(b, Object::Type::kRange);
  if (x == nullptr || y == nullptr || x->length != y->length) return false;
  return x->length == 0 || (x->begin == y->begin && (x->length == 1 || x->step == y->step));
}

absl::Status NoOrder(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return absl::InvalidArgumentError(value->undefined_message());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("values of the types ", TypeName(a), " and ", TypeName(b), " have no order"));
}

}  // namespace

double ToDouble(const Value& number) { return static_cast<double>(Exact(number)); }

std::optional<int> CompareNumbers(const Value& a, const Value& b) {
  const long double x = Exact(a);
  const long double y = Exact(b);
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kMissing:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return value.AsBool();
    case Value::Kind::kInt:
      return value.AsInt() != 0;
    case Value::Kind::kUint:
      return true;
    case Value::Kind::kFloat:
      return value.AsFloat() != 0;
    case Value::Kind::kText:
      return !value.AsText().empty();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return !value.AsItems().empty();
    case Value::Kind::kDict:
      return !value.AsDict().pairs.empty();
    case Value::Kind::kObject:
      break;
  }
  if (const auto* const range = As<RangeObject>(value, Object::Type::kRange)) return range->length > 0;
  if (const auto* const view = As<DictView>(value, Object::Type::kDictView)) return IsTrue(view->dict);
  return true;
}

bool Equal(const Value& a, const Value& b, Meter* meter) {
  if (meter != nullptr && !meter->Spend(1)) return false;
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kText:
      if (a.AsText().size() != b.AsText().size()) return false;
      if (meter != nullptr && !meter->SpendBytes(a.AsText().size())) return false;
      return a.AsText().bytes() == b.AsText().bytes();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return EqualItems(a.AsItems(), b.AsItems(), meter);
    case Value::Kind::kDict:
      return EqualDicts(a.AsDict(), b.AsDict(), meter);
    case Value::Kind::kObject:
      return EqualObjects(a, b);
    default:
      return true;
  }
}

absl::StatusOr<std::optional<int>> Compare(const Value& a, const Value& b, Meter& meter) {
  if (!meter.Spend(1)) return meter.status();
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.kind() != b.kind()) return NoOrder(a, b);
  if (a.is_text()) {
    meter.SpendBytes(std::min(a.AsText().size(), b.AsText().size()));
    return a.AsText().bytes().compare(b.AsText().bytes());
  }
  if (!a.is_sequence()) return NoOrder(a, b);
  const Value::Items& x = a.AsItems();
  const Value::Items& y = b.AsItems();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!Equal(x[i], y[i], &meter)) return Compare(x[i], y[i], meter);
  }
  return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
}

namespace {

// Tuples of tuples may share what they hold, and so have many more items than take memory.
constexpr int kMostKeyItems = 256;

absl::Status CheckHashable(const Value& value, int& left) {
  if (value.kind() == Value::Kind::kList || value.is_dict()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of the type ", TypeName(value), " cannot be the key of a dict"));
  }
  if (value.kind() != Value::Kind::kTuple) return absl::OkStatus();
  for (const Value& item : value.AsItems()) {
    if (--left < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a tuple with more than ", kMostKeyItems, " items cannot be the key of a dict"));
    }
    TDOCK_RETURN_IF_ERROR(CheckHashable(item, left));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHashable(const Value& value) {
  int left = kMostKeyItems;
  return CheckHashable(value, left);
}

uint64_t Hash(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return absl::HashOf(int64_t{value.AsBool() ? 1 : 0});
    case Value::Kind::kInt:
      return absl::HashOf(value.AsInt());
    case Value::Kind::kUint:
      return absl::HashOf(static_cast<double>(value.AsUint()));
    case Value::Kind::kFloat: {
      const double real = value.AsFloat();
      const bool fits = real >= -9.2e18 && real <= 9.2e18;
      if (fits && real == std::floor(real)) return absl::HashOf(static_cast<int64_t>(real));
      return absl::HashOf(real);
    }
    case Value::Kind::kText:
      return HashOf(value.AsText().bytes());
    case Value::Kind::kTuple: {
      uint64_t hash = value.AsItems().size();
      for (const Value& item : value.AsItems()) hash = absl::HashOf(hash, Hash(item));
      return hash;
    }
    case Value::Kind::kObject:
      return value.AsObject().type() == Object::Type::kRange ? 1 : absl::HashOf(&value.AsObject());
    default:
      return static_cast<uint64_t>(value.kind());
  }
}

absl::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kMissing:
      return "Undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
    case Value::Kind::kUint:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kText:
      return "str";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kTuple:
      return "tuple";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kObject:
      break;
  }
  switch (value.AsObject().type()) {
    case Object::Type::kNamespace:
      return "Namespace";
    case Object::Type::kMacro:
      return "Macro";
    case Object::Type::kLoop:
      return "LoopContext";
    case Object::Type::kCycler:
      return "Cycler";
    case Object::Type::kJoiner:
      return "Joiner";
    case Object::Type::kRange:
      return "range";
    case Object::Type::kDictView:
      return "dict view";
    case Object::Type::kGenerator:
      return "generator";
    case Object::Type::kMethod:
      return "method";
    case Object::Type::kFunction:
      return "function";
  }
  return "object";
}

}  // namespace tdock::jinja
