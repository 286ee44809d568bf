// Whether values are true, equal, ordered and hashable, as Python says. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "text/jinja/meter.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// Of undefined values, false. Objects are asked by `object.h`.
bool IsTrue(const Value& value);
// `meter` may be null only where both nest at most kMaxNesting levels and share nothing, as keys of dicts do.
bool Equal(const Value& a, const Value& b, Meter* meter);
// Negative, 0 or positive; of floats that are not comparable, nullopt. InvalidArgument for types without an order.
absl::StatusOr<std::optional<int>> Compare(const Value& a, const Value& b, Meter& meter);
// InvalidArgument for what cannot be the key of a dict.
absl::Status CheckHashable(const Value& value);
uint64_t Hash(const Value& value);  // of what is hashable

// Numbers without loss: equal ones compare equal whatever their types.
std::optional<int> CompareNumbers(const Value& a, const Value& b);
double ToDouble(const Value& number);

// "str", "list", "NoneType"…
absl::string_view TypeName(const Value& value);

}  // namespace tdock::jinja
