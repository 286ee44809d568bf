// Metadata of a whole batch, rather than of each of its samples.
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

// A bool, a number, a string, or a list or map of these, nested to any depth. A value type; thread-compatible.
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

  // Null if the value is not of type T: bool, int64_t, double, std::string, List or Meta.
  template <class T>
  const T* As() const {
    return std::get_if<T>(&value_);
  }
  template <class T>
  T* As() {
    return std::get_if<T>(&value_);
  }

  // Equal in type and value; doubles are compared by their bits, so that a NaN equals itself.
  friend bool operator==(const MetaValue& a, const MetaValue& b);

 private:
  std::variant<bool, int64_t, double, std::string, List, Meta> value_;
};

// As in JSON, except for numbers that JSON does not have.
std::string ToString(const MetaValue& value);

// The entries of both. InvalidArgument, naming the key, if both have a key with different values.
absl::StatusOr<Meta> UniteMeta(const Meta& a, const Meta& b);

// The meta of the batches of `metas` concatenated. The values of a key in `metrics` become a list, in the order of
// `metas`, of those that have it: a list is appended, a map of metrics becomes a map of lists. Every other key must be
// in all of them with the same value: otherwise InvalidArgument, naming the key.
absl::StatusOr<Meta> ConcatMeta(std::span<const Meta* const> metas, const std::vector<std::string>& metrics);

}  // namespace tdock
