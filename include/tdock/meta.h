// What is known about a whole batch, rather than about each of its samples.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tdock {

class MetaValue;

// By name; in the order of the names.
using Meta = std::map<std::string, MetaValue, std::less<>>;

// A truth value, a number, a string, or a list or map of such, nested as deep as you like. A value; thread-compatible.
//
//   Meta meta = {{"step", 7}, {"metrics", Meta{{"loss", 0.5}}}};
//   const int64_t* step = meta.at("step").As<int64_t>();
class MetaValue {
 public:
  using List = std::vector<MetaValue>;

  // Implicit, so that a map can be written down.
  MetaValue(bool value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral T>
  MetaValue(T value) : value_(int64_t{value}) {}                // NOLINT(google-explicit-constructor)
  MetaValue(double value) : value_(value) {}                    // NOLINT(google-explicit-constructor)
  MetaValue(std::string value) : value_(std::move(value)) {}    // NOLINT(google-explicit-constructor)
  MetaValue(const char* value) : value_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  MetaValue(List value) : value_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  MetaValue(Meta value) : value_(std::move(value)) {}           // NOLINT(google-explicit-constructor)

  // Null if the value is of another type than T: bool, int64_t, double, std::string, List or Meta.
  template <class T>
  const T* As() const {
    return std::get_if<T>(&value_);
  }
  template <class T>
  T* As() {
    return std::get_if<T>(&value_);
  }

  // The same type and the same value; doubles are compared by their bits, so that a NaN equals itself.
  friend bool operator==(const MetaValue& a, const MetaValue& b);

 private:
  std::variant<bool, int64_t, double, std::string, List, Meta> value_;
};

// As JSON would have it, but for numbers that JSON does not know.
std::string ToString(const MetaValue& value);

// What both say. InvalidArgument, naming the key, if they differ in one that both have.
absl::StatusOr<Meta> UniteMeta(const Meta& a, const Meta& b);

// What all say of themselves, as that of the batch that they make together. The values of a key in `metrics` become a
// list, in the order of `metas`, of those that have it: a list is appended, a map of metrics becomes a map of lists.
// InvalidArgument, naming the key, if another key is not in all of them, with the same value.
absl::StatusOr<Meta> ConcatMeta(std::span<const Meta* const> metas, const std::vector<std::string>& metrics);

}  // namespace tdock
