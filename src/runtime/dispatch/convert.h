// Values as C++ types and back. A type can be passed if ValueOf<T> is specialised for it: the types that a Value holds,
// Value itself, and vectors, maps from strings, and optionals (nothing if there is none) of these. For a struct of your
// own, specialise it with From and To.
#pragma once

#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "runtime/dispatch/row_weights.h"
#include "runtime/dispatch/value.h"

namespace tdock::runtime {

// How rows that are in a dock become batches.
struct Fetching {
  RowFetcher fetch = {};
  absl::Time deadline = absl::InfiniteFuture();
};

template <class T>
struct ValueOf;

template <class T>
concept Passable = requires(const Value& value, const Fetching& fetching, T own) {
  { ValueOf<T>::From(value, fetching) } -> std::same_as<absl::StatusOr<T>>;
  { ValueOf<T>::To(std::move(own)) } -> std::same_as<Value>;
};

template <class T>
  requires std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double> ||
           std::same_as<T, std::string> || std::same_as<T, RowsRef>
struct ValueOf<T> {
  static absl::StatusOr<T> From(const Value& value, const Fetching&) { return value.Get<T>(); }
  static Value To(T own) { return Value(std::move(own)); }
};

template <>
struct ValueOf<Value> {
  static absl::StatusOr<Value> From(const Value& value, const Fetching&) { return value; }
  static Value To(Value own) { return own; }
};

// Given rows of a dock, it fetches them.
template <>
struct ValueOf<MetaBatch> {
  static absl::StatusOr<MetaBatch> From(const Value& value, const Fetching& fetching) {
    if (const RowsRef* rows = value.As<RowsRef>()) return FetchRows(*rows, fetching.fetch, fetching.deadline);
    return value.Get<MetaBatch>();
  }
  static Value To(MetaBatch own) { return Value(std::move(own)); }
};

template <class T>
  requires Passable<T>
struct ValueOf<std::vector<T>> {
  static absl::StatusOr<std::vector<T>> From(const Value& value, const Fetching& fetching) {
    const Value::List* list = value.As<Value::List>();
    if (list == nullptr) return value.Unexpected("a list");
    std::vector<T> own;
    for (const Value& element : *list) {
      absl::StatusOr<T> converted = ValueOf<T>::From(element, fetching);
      if (!converted.ok()) return Annotate(converted.status(), absl::StrCat("element ", own.size()));
      own.push_back(*std::move(converted));
    }
    return own;
  }
  static Value To(std::vector<T> own) {
    Value::List list;
    for (T element : own) list.push_back(ValueOf<T>::To(std::move(element)));
    return Value(std::move(list));
  }
};

template <class T>
  requires Passable<T>
struct ValueOf<std::map<std::string, T, std::less<>>> {
  using Map = std::map<std::string, T, std::less<>>;
  static absl::StatusOr<Map> From(const Value& value, const Fetching& fetching) {
    const Value::Object* object = value.As<Value::Object>();
    if (object == nullptr) return value.Unexpected("an object");
    Map own;
    for (const auto& [name, entry] : *object) {
      absl::StatusOr<T> converted = ValueOf<T>::From(entry, fetching);
      if (!converted.ok()) return Annotate(converted.status(), absl::StrCat("entry '", EscapeForMessage(name), "'"));
      own.emplace(name, *std::move(converted));
    }
    return own;
  }
  static Value To(Map own) {
    Value::Object object;
    for (auto& [name, entry] : own) object.emplace(name, ValueOf<T>::To(std::move(entry)));
    return Value(std::move(object));
  }
};

template <class T>
  requires Passable<T>
struct ValueOf<std::optional<T>> {
  static absl::StatusOr<std::optional<T>> From(const Value& value, const Fetching& fetching) {
    if (value.IsNothing()) return std::optional<T>();
    return ValueOf<T>::From(value, fetching);
  }
  static Value To(std::optional<T> own) { return own.has_value() ? ValueOf<T>::To(*std::move(own)) : Value(); }
};

}  // namespace tdock::runtime
