// Exact arithmetic on what a model writes.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::environment {

// The value of an expression of decimals, + - * / and parentheses: "888", "-0.125", or as a fraction in lowest terms
// where it has no end as a decimal: "1/3". Decimals may have separators of thousands. InvalidArgument, in words that
// are meant for the model, for what is no such expression, for more than 1000 bytes or 50 levels, for a division by
// zero, and where a numerator or denominator on the way exceeds 63 bits.
absl::StatusOr<std::string> Evaluate(absl::string_view expression);

}  // namespace tdock::environment
