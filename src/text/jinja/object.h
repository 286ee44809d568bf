// What belongs to one render: namespaces, macros, loops and the like. Internal to this module.
//
// Objects can change and refer to each other in circles, so that no count of references could free them: they live as
// long as the render. They are charged to its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/utf8.h"
#include "text/jinja/meter.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

class Machine;

// What a call passes on.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Value, Value>> named;  // names are strings
};

class Object {
 public:
  enum class Type : uint8_t {
    kNamespace,
    kMacro,
    kLoop,
    kCycler,
    kJoiner,
    kRange,
    kDictView,
    kGenerator,  // visited once, item by item
    kMethod,     // of a value, not yet called
    kFunction    // of the environment, such as range
  };

  explicit Object(Type type) : type_(type) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Type type() const { return type_; }

 private:
  const Type type_;
};

struct Namespace final : Object {
  Namespace() : Object(Type::kNamespace) {}
  Value* Find(Machine& machine, absl::string_view name);
  Value::Pairs attributes;  // names are strings
};

struct RangeObject final : Object {
  RangeObject(int64_t first, int64_t end, int64_t by, int64_t items)
      : Object(Type::kRange), begin(first), stop(end), step(by), length(items) {}
  int64_t At(int64_t index) const { return begin + index * step; }
  const int64_t begin, stop, step, length;
};

struct DictView final : Object {
  enum class Part : uint8_t { kKeys, kValues, kItems };
  DictView(Value of, Part shown) : Object(Type::kDictView), dict(std::move(of)), part(shown) {}
  Value At(size_t index, Meter& meter) const;
  const Value dict;
  const Part part;
};

class Generator : public Object {
 public:
  Generator() : Object(Type::kGenerator) {}
  virtual absl::StatusOr<std::optional<Value>> Next(Machine& machine) = 0;
};

struct Cycler final : Object {
  explicit Cycler(std::vector<Value> of) : Object(Type::kCycler), items(std::move(of)) {}
  const std::vector<Value> items;
  size_t at = 0;
};

struct Joiner final : Object {
  explicit Joiner(Value between) : Object(Type::kJoiner), separator(std::move(between)) {}
  const Value separator;
  bool used = false;
};

struct Method final : Object {
  Method(Value of, std::string called) : Object(Type::kMethod), self(std::move(of)), name(std::move(called)) {}
  const Value self;
  const std::string name;
};

struct Builtin final : Object {
  using Call = absl::StatusOr<Value> (*)(Machine& machine, Arguments& arguments);
  Builtin(absl::string_view called, Call run) : Object(Type::kFunction), name(called), call(run) {}
  const absl::string_view name;
  const Call call;
};

// The variables of a function that runs.
struct Frame {
  Frame* outer = nullptr;
  std::vector<Value> slots;
};

struct Macro final : Object {
  Macro(const Stmt& declared, Frame* frame) : Object(Type::kMacro), stmt(declared), outer(frame) {}
  const Stmt& stmt;
  Frame* const outer;
};

// Visits what can be iterated over.
class Iteration {
 public:
  Iteration() = default;
  // InvalidArgument for what cannot.
  static absl::StatusOr<Iteration> Over(const Value& value);
  absl::StatusOr<std::optional<Value>> Next(Machine& machine);
  // How many items there are; nullopt: only a visit can tell.
  std::optional<int64_t> Length(Meter& meter) const;

 private:
  Value value_;
  size_t at_ = 0;
};

struct Loop final : Object {
  Loop(const Stmt& of, Frame* frame) : Object(Type::kLoop), stmt(of), outer(frame) {}
  absl::StatusOr<std::optional<Value>> Advance(Machine& machine);
  absl::Status Peek(Machine& machine);
  absl::StatusOr<int64_t> Length(Machine& machine);
  void Release(Machine& machine);  // at the end of the loop: the items that are left

  const Stmt& stmt;
  Frame* const outer;  // of a recursive loop
  Iteration items;
  int64_t index0 = -1;
  int64_t depth0 = 0;
  std::optional<int64_t> length;
  std::vector<Value> ahead;  // items that were asked for before their turn; the next one is the last
  bool exhausted = false;
  Value before = Value::Missing(), current = Value::Missing();
  std::optional<std::vector<Value>> last_changed;
};

// What functions of a template need from the render that they run in. Not thread-safe.
class Machine {
 public:
  Machine(const Limits& limits, const RenderOptions& options)
      : meter_(limits.steps, limits.memory_bytes, options.stop),
        now_(options.now),
        zone_(options.time_zone),
        deepest_(kLevelsPerDepth * limits.depth) {}
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  virtual absl::StatusOr<Value> Call(const Value& callee, Arguments arguments) = 0;

  Meter& meter() { return meter_; }
  absl::Time now() const { return now_; }
  absl::TimeZone zone() const { return zone_; }

  template <class T, class... Args>
  T& New(Args&&... args) {
    meter_.Hold(sizeof(T) + 2 * sizeof(void*));
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T& object = *made;
    objects_.push_back(std::move(made));
    return object;
  }
  template <class T, class... Args>
  Value NewValue(Args&&... args) {
    return Value::OfObject(New<T>(std::forward<Args>(args)...));
  }

  // Making them costs steps by their size.
  Value String(Text text) {
    meter_.SpendBytes(text.size());
    return Value::String(std::move(text), &meter_);
  }
  Value String(absl::string_view text) { return String(Text(std::string(text))); }
  Value List(Value::Items items) {
    SpendItems(items.size());
    return Value::List(std::move(items), &meter_);
  }
  Value Tuple(Value::Items items) {
    SpendItems(items.size());
    return Value::Tuple(std::move(items), &meter_);
  }
  Value Dict(Value::Pairs pairs) {
    meter_.Spend(static_cast<int64_t>(pairs.size()));
    return Value::Dict(std::move(pairs), -1, &meter_);
  }
  // Spends the steps of looking up what CheckHashable() allows.
  void SpendKey(const Value& key) {
    if (key.is_text()) meter_.SpendBytes(key.AsText().size());
    if (key.kind() == Value::Kind::kTuple) SpendTuple(key);
  }
  // Spends the steps of copying or looking through so many values.
  void SpendItems(size_t items) { meter_.Spend(static_cast<int64_t>(items / 8)); }
  Value Undefined(std::string message) { return Value::Undefined(std::move(message), &meter_); }

  // raise_exception: the message is that of the error, to which nothing is added.
  absl::Status Raise(absl::string_view message) {
    is_raised_ = true;
    return absl::InvalidArgumentError(EscapeUnprintable(message, 1000));
  }
  bool is_raised() const { return is_raised_; }

  // One level of what calls itself: expressions, blocks, macros, generators of generators.
  class Level {
   public:
    explicit Level(Machine& machine) : machine_(machine) { ++machine_.level_; }
    ~Level() { --machine_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    bool is_too_deep() const { return machine_.level_ > machine_.deepest_; }

   private:
    Machine& machine_;
  };
  absl::Status TooDeep() const;

 private:
  void SpendTuple(const Value& key);

  Meter meter_;  // outlives what is charged to it
  absl::Time now_;
  absl::TimeZone zone_;
  std::vector<std::unique_ptr<Object>> objects_;
  bool is_raised_ = false;
  // A call of a macro is a few levels of expressions and blocks.
  static constexpr int kLevelsPerDepth = 16;
  const int deepest_;
  int level_ = 0;
};

// All items, in a list. InvalidArgument for what cannot be iterated over.
absl::StatusOr<std::vector<Value>> ItemsOf(Machine& machine, const Value& value);
// Of what has a length; InvalidArgument for the rest.
absl::StatusOr<int64_t> LengthOf(Machine& machine, const Value& value);

template <class T>
T* As(const Value& value, Object::Type type) {
  if (value.kind() != Value::Kind::kObject || value.AsObject().type() != type) return nullptr;
  return static_cast<T*>(&value.AsObject());
}

}  // namespace tdock::jinja
