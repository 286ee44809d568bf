#include "text/jinja/object.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/node.h"

namespace tdock::jinja {

absl::Status Machine::TooDeep() const {
  return absl::ResourceExhaustedError(absl::StrCat("the template calls itself, or nests, more than ", deepest_,
                                                   " levels of expressions and blocks deep"));
}

void Machine::SpendTuple(const Value& key) {
  for (const Value& item : key.AsItems()) SpendKey(item);
}

Value* Namespace::Find(Machine& machine, absl::string_view name) {
  machine.SpendItems(attributes.size());
  for (auto& [key, value] : attributes) {
    if (key.AsText().bytes() == name) return &value;
  }
  return nullptr;
}

Value DictView::At(size_t index, Meter& meter) const {
  const auto& [key, value] = dict.AsDict().pairs[index];
  if (part == Part::kKeys) return key;
  if (part == Part::kValues) return value;
  return Value::Tuple({key, value}, &meter);
}

absl::StatusOr<Iteration> Iteration::Over(const Value& value) {
  Iteration made;
  made.value_ = value;
  if (value.is_undefined() || value.is_text() || value.is_sequence() || value.is_dict()) return made;
  for (const Object::Type type :
       {Object::Type::kRange, Object::Type::kDictView, Object::Type::kGenerator, Object::Type::kLoop}) {
    if (As<Object>(value, type) != nullptr) return made;
  }
  return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(value), " cannot be iterated over"));
}

std::optional<int64_t> Iteration::Length(Meter& meter) const {
  switch (value_.kind()) {
    case Value::Kind::kText:
      if (!meter.SpendBytes(value_.AsText().size())) return 0;
      return CountCharacters(value_.AsText().bytes());
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return static_cast<int64_t>(value_.AsItems().size());
    case Value::Kind::kDict:
      return static_cast<int64_t>(value_.AsDict().pairs.size());
    default:
      break;  // of an undefined value, which has no length, loop.length visits it
  }
  if (const auto* const range = As<RangeObject>(value_, Object::Type::kRange)) return range->length;
  if (const auto* const view = As<DictView>(value_, Object::Type::kDictView)) {
    return static_cast<int64_t>(view->dict.AsDict().pairs.size());
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<Value>> Iteration::Next(Machine& machine) {
  const auto at = [&](const auto& items, const auto& item) -> std::optional<Value> {
    return at_ < items.size() ? std::optional<Value>(item(items[at_++])) : std::nullopt;
  };
  switch (value_.kind()) {
    case Value::Kind::kText: {
      const Text& text = value_.AsText();
      if (at_ >= text.size()) return std::nullopt;
      const size_t begin = at_;
      at_ += CharacterAt(text.bytes(), begin).bytes;
      return machine.String(text.Substr(begin, at_));
    }
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return at(value_.AsItems(), [](const Value& item) { return item; });
    case Value::Kind::kDict:
      return at(value_.AsDict().pairs, [](const auto& pair) { return pair.first; });
    case Value::Kind::kObject:
      break;
    default:
      return std::nullopt;
  }
  if (const auto* const range = As<RangeObject>(value_, Object::Type::kRange)) {
    if (static_cast<int64_t>(at_) >= range->length) return std::nullopt;
    return Value::Int(range->At(static_cast<int64_t>(at_++)));
  }
  if (const auto* const view = As<DictView>(value_, Object::Type::kDictView)) {
    if (at_ >= view->dict.AsDict().pairs.size()) return std::nullopt;
    return view->At(at_++, machine.meter());
  }
  const Machine::Level level(machine);
  if (level.is_too_deep()) return machine.TooDeep();
  if (auto* const loop = As<Loop>(value_, Object::Type::kLoop)) {
    TDOCK_ASSIGN_OR_RETURN(auto item, loop->Advance(machine));
    if (!item) return std::nullopt;
    return machine.Tuple({*std::move(item), value_});
  }
  TDOCK_ASSIGN_OR_RETURN(auto item, static_cast<Generator&>(value_.AsObject()).Next(machine));
  if (!item) value_ = Value();
  return item;
}

absl::Status Loop::Peek(Machine& machine) {
  if (!ahead.empty() || exhausted) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(auto item, items.Next(machine));
  if (item) {
    ahead.push_back(*std::move(item));
  } else {
    exhausted = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Value>> Loop::Advance(Machine& machine) {
  TDOCK_RETURN_IF_ERROR(Peek(machine));
  if (ahead.empty()) return std::nullopt;
  Value item = std::move(ahead.back());
  ahead.pop_back();
  ++index0;
  before = std::move(current);
  current = item;
  return item;
}

absl::StatusOr<int64_t> Loop::Length(Machine& machine) {
  if (length) return *length;
  length = items.Length(machine.meter());
  if (length) return *length;
  const bool has_peeked = !ahead.empty();
  std::vector<Value> rest;
  while (!exhausted) {
    TDOCK_ASSIGN_OR_RETURN(auto item, items.Next(machine));
    if (!item) break;
    rest.push_back(*std::move(item));
    machine.meter().Spend(1);
    if (!machine.meter().MayHold(rest.size() * sizeof(Value))) return machine.meter().status();
  }
  exhausted = true;
  length = static_cast<int64_t>(rest.size()) + index0 + 1 + (has_peeked ? 1 : 0);
  std::reverse(rest.begin(), rest.end());
  if (has_peeked) rest.push_back(std::move(ahead.back()));
  ahead = std::move(rest);
  return *length;
}

void Loop::Release(Machine& machine) {
  if (!length) length = items.Length(machine.meter()).value_or(index0 + 1);
  items = Iteration();
  ahead.clear();
  exhausted = true;
}

absl::StatusOr<std::vector<Value>> ItemsOf(Machine& machine, const Value& value) {
  if (value.is_sequence()) {
    machine.meter().Spend(static_cast<int64_t>(value.AsItems().size()));
    if (!machine.meter().MayHold(value.AsItems().size() * sizeof(Value))) return machine.meter().status();
    return value.AsItems();
  }
  TDOCK_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(value));
  std::vector<Value> items;
  while (true) {
    TDOCK_ASSIGN_OR_RETURN(auto item, iteration.Next(machine));
    if (!item) return items;
    items.push_back(*std::move(item));
    machine.meter().Spend(1);
    if (!machine.meter().MayHold(items.size() * sizeof(Value))) return machine.meter().status();
  }
}

absl::StatusOr<int64_t> LengthOf(Machine& machine, const Value& value) {
  if (value.is_undefined()) return 0;
  if (auto* const loop = As<Loop>(value, Object::Type::kLoop)) return loop->Length(machine);
  if (const auto iteration = Iteration::Over(value); iteration.ok()) {
    if (const auto length = iteration->Length(machine.meter())) return *length;
  }
  return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(value), " has no length"));
}

}  // namespace tdock::jinja
