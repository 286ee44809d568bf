// For tests: tensors of float64.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trainer/algo/aggregate.h"

namespace tdock::algo {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline at::Tensor Numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }
inline at::Tensor Integers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Standard normal numbers.
inline at::Tensor Normal(int64_t count, uint64_t seed) {
  return at::randn({count}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

// Sequences of these lengths, of which all tokens count.
inline Tokens All(const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t length : lengths) total += length;
  return MakeTokens(at::ones({total}, at::kDouble), lengths);
}

inline testing::AssertionResult Near(const at::Tensor& given, const std::vector<double>& expected, double tolerance) {
  if (given.dim() == 1 && given.numel() == static_cast<int64_t>(expected.size()) &&
      at::allclose(given.to(at::kDouble), Numbers(expected), 0, tolerance)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << given << " is not " << testing::PrintToString(expected);
}

// The text contains each of `names`. This module may not include core/base/testing/fails.h, which has it for the
// others.
MATCHER_P(MentionsAll, names, "") {
  const std::string& text = arg;
  for (const std::string& name : names) {
    if (text.find(name) == std::string::npos) {
      *result_listener << "without '" << name << "'";
      return false;
    }
  }
  return true;
}

inline auto Mentions(std::vector<std::string> names) { return MentionsAll(std::move(names)); }

// The message of the c10::Error that `body` throws; empty if it throws none.
template <class Body>
std::string ErrorOf(Body&& body) {
  try {
    body();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

}  // namespace tdock::algo
