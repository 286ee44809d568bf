// The legal values nearest to one that is not, for messages.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace tdock::config {

// The multiples of `of` below and above `value`: "640 or 672"; only the one above if the other is 0, and none above
// `most`; empty if there is none. `of` is at least 1.
std::string NearestMultiples(int64_t value, int64_t of, int64_t most = std::numeric_limits<int64_t>::max());

// The divisors of `whole` below and above `value`: "128 or 256"; only one of them if there is no other. `whole` and
// `value` are at least 1. Takes time in proportion to the square root of `whole`.
std::string NearestDivisors(int64_t value, int64_t whole);

// The same of those divisors that are legal; empty if none is.
std::string NearestDivisors(int64_t value, int64_t whole, const std::function<bool(int64_t)>& is_legal);

}  // namespace tdock::config
