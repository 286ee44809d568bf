// The operators of Python. Internal to this module.
#pragma once

#include <optional>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "text/jinja/object.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// InvalidArgument for types that do not go together, a division by zero, and integers beyond 64 bits.
absl::StatusOr<Value> Calculate(Machine& machine, Operator op, const Value& left, const Value& right);
absl::StatusOr<Value> Negate(const Value& value, bool is_negative);
absl::StatusOr<bool> CompareBy(Machine& machine, Operator op, const Value& left, const Value& right);
absl::StatusOr<bool> Contains(Machine& machine, const Value& container, const Value& item);

absl::int128 ToInt128(const Value& integer);
absl::StatusOr<Value> FromInt128(absl::int128 integer);
// The integer that an argument or an index is, as large as it may be without a clear error.
absl::StatusOr<int64_t> IntOf(const Value& value, absl::string_view what);

// [begin:end:step] of a text, list, tuple or range; each nullopt where it is not given.
struct SliceBounds {
  std::optional<int64_t> begin, end, step;
};
absl::StatusOr<Value> SliceOf(Machine& machine, const Value& value, const SliceBounds& bounds);

}  // namespace tdock::jinja
