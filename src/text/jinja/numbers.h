// int() and float() of Python, and round(). Internal to this module.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// int(value, base) of a string, int(value) of others; nullopt where Python's raises. InvalidArgument beyond 64 bits.
absl::StatusOr<std::optional<Value>> ParseInt(const Value& value, int64_t base);
std::optional<double> ParseFloat(const Value& value);
absl::StatusOr<Value> TruncatedFloat(double value);
// round(value, digits), to even.
double RoundedFloat(double value, int64_t digits);

}  // namespace tdock::jinja
