// What the calls of a worker group pass and return.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/meta.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {

// Rows that are in a dock, by number: it is cut by rows like a batch, and whoever gets a part fetches only that part.
struct RowsRef {
  std::string partition = {};
  std::vector<uint64_t> rows = {};  // RowIds
  std::vector<std::string> columns = {};
  // Becomes the meta of the batch.
  Meta meta = {};
  // Set if the call was padded: the first so many of `rows` are real, the others are copies (see row_weights.h).
  std::optional<int64_t> real_rows = std::nullopt;

  friend bool operator==(const RowsRef&, const RowsRef&) = default;
};

// One of a closed list of types. An immutable value: copies share what it holds, and cost the same however large it is.
// Thread-safe.
//
//   Value value = Value::Object{{"lr", 1e-6}, {"layers", Value::List{1, 2}}};
//   absl::StatusOr<double> lr = value.Get<double>();      // "expected a double, given an object of 2 entries"
class Value {
 public:
  using List = std::vector<Value>;
  using Object = std::map<std::string, Value, std::less<>>;

  // Lists and objects in each other: how deep a value may be that a call passes or returns. A decoder of foreign bytes
  // must not make a deeper one.
  static constexpr int kMaxDepth = 64;

  // Nothing.
  Value() = default;
  // Implicit, so that arguments can be written down.
  Value(bool value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral T>
  Value(T value) : value_(int64_t{value}) {}               // NOLINT(google-explicit-constructor)
  Value(double value) : value_(value) {}                   // NOLINT(google-explicit-constructor)
  Value(std::string value);                                // NOLINT(google-explicit-constructor)
  Value(const char* value) : Value(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Value(List value);                                       // NOLINT(google-explicit-constructor)
  Value(Object value);                                     // NOLINT(google-explicit-constructor)
  Value(MetaBatch value);                                  // NOLINT(google-explicit-constructor)
  Value(RowsRef value);                                    // NOLINT(google-explicit-constructor)

  bool IsNothing() const { return std::holds_alternative<std::monostate>(value_); }

  // Null if the value is not of type T: bool, int64_t, double, std::string, List, Object, MetaBatch or RowsRef.
  template <class T>
  const T* As() const {
    if constexpr (kIsScalar<T>) {
      return std::get_if<T>(&value_);
    } else {
      const Shared<T>* shared = std::get_if<Shared<T>>(&value_);
      return shared == nullptr ? nullptr : &(*shared)->value;
    }
  }
  // InvalidArgument, naming the expected and the given type, if the value is not of type T.
  template <class T>
  absl::StatusOr<T> Get() const {
    if (const T* value = As<T>()) return *value;
    return Unexpected(NameOf<T>());
  }

  // 1 for a value that is no list or object; for those, 1 more than the deepest of theirs.
  int depth() const;
  // "nothing", "an int64", "a list of 3", "a batch of 8 rows", "8 rows of partition 'train'".
  std::string Describe() const;
  // InvalidArgument: expected `what`, given this.
  absl::Status Unexpected(absl::string_view what) const;

  // Equal in type and value; doubles are compared by their bits.
  friend bool operator==(const Value& a, const Value& b);

 private:
  template <class T>
  struct Held {
    T value;
    int depth = 1;
  };
  template <class T>
  using Shared = std::shared_ptr<const Held<T>>;
  template <class T>
  static constexpr bool kIsScalar = std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double>;

  template <class T>
  static constexpr absl::string_view NameOf() {
    if constexpr (std::same_as<T, bool>) return "a bool";
    if constexpr (std::same_as<T, int64_t>) return "an int64";
    if constexpr (std::same_as<T, double>) return "a double";
    if constexpr (std::same_as<T, std::string>) return "a string";
    if constexpr (std::same_as<T, List>) return "a list";
    if constexpr (std::same_as<T, Object>) return "an object";
    if constexpr (std::same_as<T, MetaBatch>) return "a batch";
    if constexpr (std::same_as<T, RowsRef>) return "rows of a partition";
  }

  std::variant<std::monostate, bool, int64_t, double, Shared<std::string>, Shared<List>, Shared<Object>,
               Shared<MetaBatch>, Shared<RowsRef>>
      value_;
};

// InvalidArgument, naming `what`, if the value is deeper than Value::kMaxDepth.
absl::Status CheckDepth(const Value& value, absl::string_view what);

}  // namespace tdock::runtime
