// The values that a template computes with, as Python has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include "core/base/json_text.h"

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/text.h"

namespace tdock::jinja {

class Meter;   // internal: what a render may still use
class Object;  // internal: what belongs to one render, such as macros and namespaces
struct Node;
struct DictNode;

// How deep lists and dicts may nest.
inline constexpr int kMaxNesting = 200;

// Immutable, and so thread-safe; cheap to copy. Lists and dicts share what they hold.
class Value {
 public:
  // kUint is an integer beyond int64_t. kMissing is internal: a variable that is not set.
  enum class Kind : uint8_t {
    kUndefined,
    kMissing,
    kNone,
    kBool,
    kInt,
    kUint,
    kFloat,
    kText,
    kList,
    kTuple,
    kDict,
    kObject
  };
  using Items = std::vector<Value>;
  using Pairs = std::vector<std::pair<Value, Value>>;

  Value() : Value(Kind::kUndefined) {}  // undefined
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Uint(uint64_t value);
  static Value Float(double value);
  // `bytes` must be UTF-8.
  static Value String(absl::string_view bytes, Origin origin = kOfTemplate);
  static Value String(Text text, Meter* meter = nullptr);
  // Items and values that nest deeper than kMaxNesting are errors of the meter; without one, a failed check.
  static Value List(Items items, Meter* meter = nullptr);
  static Value Tuple(Items items, Meter* meter = nullptr);
  // In this order; of equal keys, the last value at the first place. Keys must be hashable: neither lists nor dicts,
  // nor tuples that hold some. `mark`, 0 or more, says which turn of a conversation this is: what a template puts out
  // while a loop is at this dict belongs to the mark; of nested loops, to the innermost one that is at a marked dict.
  static Value Dict(Pairs pairs, int32_t mark = -1, Meter* meter = nullptr);

  Value(const Value& other);
  Value(Value&& other) noexcept : kind_(other.kind_), payload_(other.payload_) { other.kind_ = Kind::kNone; }
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value() { Release(); }

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_text() const { return kind_ == Kind::kText; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  // bool, int and float, as Python counts them.
  bool is_number() const { return kind_ >= Kind::kBool && kind_ <= Kind::kFloat; }
  bool is_integer() const { return kind_ >= Kind::kBool && kind_ <= Kind::kUint; }

  // Each for values of its kind only.
  bool AsBool() const { return payload_.boolean; }
  int64_t AsInt() const { return payload_.integer; }
  uint64_t AsUint() const { return payload_.natural; }
  double AsFloat() const { return payload_.real; }
  const Text& AsText() const;
  const Items& AsItems() const;  // of lists and tuples
  const DictNode& AsDict() const;
  Object& AsObject() const { return *payload_.object; }
  absl::string_view undefined_message() const;  // what a use of it is reported as

  // The value of a key that is a string, nullptr where there is none.
  const Value* Find(absl::string_view key) const;
  int32_t mark() const;  // -1: none
  int nesting() const;
  // Of what shares its contents: whether these are the same ones, not only equal.
  bool is_same(const Value& other) const { return payload_.node == other.payload_.node; }

  // Internal.
  static Value Missing() { return Value(Kind::kMissing); }
  static Value Undefined(std::string message, Meter* meter);
  static Value OfObject(Object& object);
  // What groupby yields: a tuple of two whose items are also attributes.
  static Value Group(Value grouper, Value items, Meter* meter);
  bool is_group() const;
  // What the filters safe and escape yield: a string that a sum with another one escapes.
  static Value Markup(Text text, Meter* meter);
  bool is_markup() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, Node* node) : kind_(kind) { payload_.node = node; }
  bool is_counted() const;
  void Release();

  Kind kind_;
  union Payload {
    Node* node = nullptr;
    bool boolean;
    int64_t integer;
    uint64_t natural;
    double real;
    Object* object;  // not owned
  } payload_;
};

// All strings, keys of dicts included, get this origin. InvalidArgument for text that is not UTF-8, and for more than
// kMaxNesting levels. Integers are exact where `json` has them as such, which is up to 64 bits.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Origin origin);

}  // namespace tdock::jinja
