#include "text/jinja/lookup.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/methods.h"
#include "text/jinja/node.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {
namespace {

const NamedMethod* FindMethodOf(const Value& value, absl::string_view name) {
  switch (value.kind()) {
    case Value::Kind::kText:
      return FindTextMethod(name);
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return FindListMethod(value, name);
    case Value::Kind::kDict:
      return FindDictMethod(name);
    case Value::Kind::kBool:
    case Value::Kind::kInt:
    case Value::Kind::kUint:
    case Value::Kind::kFloat:
      return FindNumberMethod(value, name);
    default:
      return nullptr;
  }
}

// What would change a value; the sandbox hides it.
bool IsForbidden(const Value& value, absl::string_view name) {
  constexpr std::array<absl::string_view, 8> kOfLists = {"append", "clear", "pop",    "reverse",
                                                         "insert", "sort",  "extend", "remove"};
  constexpr std::array<absl::string_view, 5> kOfDicts = {"clear", "pop", "popitem", "setdefault", "update"};
  if (value.kind() == Value::Kind::kList) return std::find(kOfLists.begin(), kOfLists.end(), name) != kOfLists.end();
  if (value.is_dict()) return std::find(kOfDicts.begin(), kOfDicts.end(), name) != kOfDicts.end();
  return false;
}

// Attributes that every Python object has, or those of these types, and the sandbox hides.
bool IsOfEveryObject(absl::string_view name) {
  constexpr std::array<absl::string_view, 24> kNames = {"__class__",
                                                        "__doc__",
                                                        "__init__",
                                                        "__new__",
                                                        "__repr__",
                                                        "__str__",
                                                        "__hash__",
                                                        "__eq__",
                                                        "__ne__",
                                                        "__lt__",
                                                        "__le__",
                                                        "__gt__",
                                                        "__ge__",
                                                        "__dir__",
                                                        "__format__",
                                                        "__reduce__",
                                                        "__reduce_ex__",
                                                        "__getattribute__",
                                                        "__setattr__",
                                                        "__delattr__",
                                                        "__sizeof__",
                                                        "__subclasshook__",
                                                        "__init_subclass__",
                                                        "__getstate__"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Methods of Python's types that this interpreter does not have.
bool IsNotSupported(const Value& value, absl::string_view name) {
  if (value.is_text()) return name == "encode" || name == "translate" || name == "maketrans";
  if (value.is_number()) return name == "to_bytes" || name == "from_bytes" || name == "hex" || name == "fromhex";
  return value.is_dict() && name == "fromkeys";
}

std::string Shown(const Value& value) {
  return value.kind() == Value::Kind::kNone ? "None" : absl::StrCat("'", TypeName(value), " object'");
}

Value Unsafe(Machine& machine, const Value& value, absl::string_view name) {
  return machine.Undefined(absl::StrCat("access to the attribute ", Quoted(name), " of a value of the type ",
                                        TypeName(value), " is unsafe"));
}

absl::StatusOr<std::optional<Value>> LoopAttribute(Machine& machine, Loop& loop, absl::string_view name) {
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "last") {
    TDOCK_RETURN_IF_ERROR(loop.Peek(machine));
    return Value::Bool(loop.ahead.empty());
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    TDOCK_ASSIGN_OR_RETURN(const int64_t length, loop.Length(machine));
    if (name == "length") return Value::Int(length);
    return Value::Int(length - loop.index0 - (name == "revindex0" ? 1 : 0));
  }
  if (name == "previtem") {
    if (loop.index0 == 0 || loop.before.kind() == Value::Kind::kMissing)
      return machine.Undefined("there is no previous item");
    return loop.before;
  }
  if (name == "nextitem") {
    TDOCK_RETURN_IF_ERROR(loop.Peek(machine));
    if (loop.ahead.empty()) return machine.Undefined("there is no next item");
    return loop.ahead.back();
  }
  if (name == "cycle" || name == "changed") return machine.NewValue<Method>(Value::OfObject(loop), std::string(name));
  return std::nullopt;
}

Value MacroAttribute(Machine& machine, const Macro& macro, absl::string_view name) {
  if (name == "name" && macro.stmt.kind == Stmt::Kind::kMacro) return machine.String(macro.stmt.name);
  if (name == "name") return Value::None();
  if (name == "catch_kwargs") return Value::Bool(macro.stmt.keyword_arguments.index >= 0);
  if (name == "catch_varargs") return Value::Bool(macro.stmt.more_arguments.index >= 0);
  if (name == "caller") return Value::Bool(macro.stmt.caller.index >= 0);
  if (name != "arguments") return Value::Missing();
  Value::Items names;
  for (const ExprPtr& part : macro.stmt.parts) names.push_back(machine.String(part->name));
  return machine.Tuple(std::move(names));
}

absl::StatusOr<std::optional<Value>> ObjectAttribute(Machine& machine, const Value& value, absl::string_view name) {
  Object& object = value.AsObject();
  const auto found = [](Value attribute) {
    return attribute.kind() == Value::Kind::kMissing ? std::nullopt : std::optional<Value>(std::move(attribute));
  };
  switch (object.type()) {
    case Object::Type::kNamespace: {
      const Value* const attribute = static_cast<Namespace&>(object).Find(machine, name);
      return attribute == nullptr ? std::nullopt : std::optional<Value>(*attribute);
    }
    case Object::Type::kLoop:
      return LoopAttribute(machine, static_cast<Loop&>(object), name);
    case Object::Type::kMacro:
      return found(MacroAttribute(machine, static_cast<const Macro&>(object), name));
    case Object::Type::kCycler: {
      const auto& cycler = static_cast<const Cycler&>(object);
      if (name == "current") return cycler.items[cycler.at];
      if (name == "pos") return Value::Int(static_cast<int64_t>(cycler.at));
      if (name == "items") return machine.Tuple(cycler.items);
      if (name == "next" || name == "reset") return machine.NewValue<Method>(value, std::string(name));
      return std::nullopt;
    }
    case Object::Type::kJoiner:
      if (name == "sep") return static_cast<const Joiner&>(object).separator;
      if (name == "used") return Value::Bool(static_cast<const Joiner&>(object).used);
      return std::nullopt;
    case Object::Type::kRange:
      if (name == "start") return Value::Int(static_cast<const RangeObject&>(object).begin);
      if (name == "stop") return Value::Int(static_cast<const RangeObject&>(object).stop);
      if (name == "step") return Value::Int(static_cast<const RangeObject&>(object).step);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// The attribute proper; nullopt: there is none.
absl::StatusOr<std::optional<Value>> Attribute(Machine& machine, const Value& value, absl::string_view name) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  if (IsForbidden(value, name) || IsOfEveryObject(name)) return Unsafe(machine, value, name);
  if (value.kind() == Value::Kind::kObject) return ObjectAttribute(machine, value, name);
  if (value.kind() == Value::Kind::kTuple && value.is_group() && (name == "grouper" || name == "list")) {
    return value.AsItems()[name == "list" ? 1 : 0];
  }
  if (value.is_number() && (name == "real" || name == "numerator") && (name == "real" || value.is_integer()))
    return Negate(value, false);
  if (value.is_number() && name == "imag") return value.kind() == Value::Kind::kFloat ? Value::Float(0) : Value::Int(0);
  if (value.is_integer() && name == "denominator") return Value::Int(1);
  if (FindMethodOf(value, name) != nullptr) return machine.NewValue<Method>(value, std::string(name));
  if (IsNotSupported(value, name)) {
    return absl::UnimplementedError(
        absl::StrCat("the method ", name, "() of the type ", TypeName(value), " is not supported in a chat template"));
  }
  return std::nullopt;
}

// value[key] proper; nullopt: there is none.
absl::StatusOr<std::optional<Value>> Item(Machine& machine, const Value& value, const Value& key) {
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  if (value.is_dict()) {
    if (!CheckHashable(key).ok()) return std::nullopt;
    machine.SpendKey(key);
    const int64_t found = value.AsDict().Find(key);
    return found < 0 ? std::nullopt : std::optional<Value>(value.AsDict().pairs[static_cast<size_t>(found)].second);
  }
  if (!key.is_integer() || key.kind() == Value::Kind::kUint) return std::nullopt;
  auto index = static_cast<int64_t>(ToInt128(key));
  const auto* const range = As<RangeObject>(value, Object::Type::kRange);
  if (!value.is_text() && !value.is_sequence() && range == nullptr) return std::nullopt;
  TDOCK_ASSIGN_OR_RETURN(const int64_t length, LengthOf(machine, value));
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (range != nullptr) return Value::Int(range->At(index));
  if (value.is_sequence()) return value.AsItems()[static_cast<size_t>(index)];
  const Text& text = value.AsText();
  machine.meter().SpendBytes(text.size());
  const size_t begin = OffsetOf(text.bytes(), index);
  return machine.String(text.Substr(begin, begin + CharacterAt(text.bytes(), begin).bytes));
}

Value NoAttribute(Machine& machine, const Value& value, absl::string_view name) {
  return machine.Undefined(absl::StrCat(Shown(value), " has no attribute '", EscapeForMessage(name), "'"));
}

absl::StatusOr<Value> CallObjectMethod(Machine& machine, const Value& self, absl::string_view name,
                                       Arguments& arguments) {
  if (!arguments.named.empty()) return absl::InvalidArgumentError(absl::StrCat(name, "() takes no named arguments"));
  if (auto* const cycler = As<Cycler>(self, Object::Type::kCycler)) {
    if (!arguments.positional.empty()) return absl::InvalidArgumentError(absl::StrCat(name, "() takes no arguments"));
    if (name == "reset") {
      cycler->at = 0;
      return Value::None();
    }
    Value item = cycler->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items.size();
    return item;
  }
  auto& loop = *As<Loop>(self, Object::Type::kLoop);
  if (name == "cycle") {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("cycle() needs arguments to cycle through");
    return arguments.positional[static_cast<size_t>(loop.index0) % arguments.positional.size()];
  }
  const auto equal = [&](const Value& a, const Value& b) { return Equal(a, b, &machine.meter()); };
  const bool is_same = loop.last_changed && std::equal(loop.last_changed->begin(), loop.last_changed->end(),
                                                       arguments.positional.begin(), arguments.positional.end(), equal);
  if (!is_same) loop.last_changed = arguments.positional;
  return Value::Bool(!is_same);
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Machine& machine, const Value& value, const Value& name) {
  const absl::string_view bytes = name.AsText().bytes();
  // Few keys of dicts are called like methods.
  if (value.is_dict() && !IsForbidden(value, bytes) && FindDictMethod(bytes) == nullptr &&
      !absl::StartsWith(bytes, "_")) {
    const int64_t found = value.AsDict().FindString(bytes);
    if (found >= 0) return value.AsDict().pairs[static_cast<size_t>(found)].second;
  }
  TDOCK_ASSIGN_OR_RETURN(auto attribute, Attribute(machine, value, bytes));
  if (attribute) return *std::move(attribute);
  TDOCK_ASSIGN_OR_RETURN(auto item, Item(machine, value, name));
  return item ? *std::move(item) : NoAttribute(machine, value, bytes);
}

absl::StatusOr<Value> GetItem(Machine& machine, const Value& value, const Value& key) {
  TDOCK_ASSIGN_OR_RETURN(auto item, Item(machine, value, key));
  if (item) return *std::move(item);
  if (key.is_text()) return GetOnlyAttribute(machine, value, key);
  TDOCK_ASSIGN_OR_RETURN(const Text shown, Repr(machine, key));
  return machine.Undefined(absl::StrCat(Shown(value), " has no element ", EscapeForMessage(shown.bytes())));
}

absl::StatusOr<Value> GetOnlyAttribute(Machine& machine, const Value& value, const Value& name) {
  TDOCK_ASSIGN_OR_RETURN(auto attribute, Attribute(machine, value, name.AsText().bytes()));
  return attribute ? *std::move(attribute) : NoAttribute(machine, value, name.AsText().bytes());
}

bool HasMethod(const Value& value, absl::string_view name) {
  if (value.kind() != Value::Kind::kObject) return FindMethodOf(value, name) != nullptr;
  if (As<Cycler>(value, Object::Type::kCycler) != nullptr) return name == "next" || name == "reset";
  return As<Loop>(value, Object::Type::kLoop) != nullptr && (name == "cycle" || name == "changed");
}

absl::StatusOr<Value> CallMethod(Machine& machine, const Value& self, absl::string_view name, Arguments& arguments) {
  if (self.kind() == Value::Kind::kObject) return CallObjectMethod(machine, self, name, arguments);
  return FindMethodOf(self, name)->run(machine, self, arguments);
}

}  // namespace tdock::jinja
