// Tests of programs, as data sets write them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::reward {

struct CodeTest {
  enum class Kind { kOutput, kFunction, kAssertions };
  Kind kind = Kind::kOutput;
  std::string input = {};         // kOutput: its standard input
  std::string output = {};        // kOutput: the standard output that is right
  std::string function = {};      // kFunction
  nlohmann::json arguments = {};  // kFunction: a list
  nlohmann::json expected = {};   // kFunction
  std::string assertions = {};    // kAssertions: Python text
};

// The tests of a truth: a JSON object with "inputs" and "outputs", and "fn_name" for functions (APPS, TACO, verl's
// prime_code); a JSON list of texts with assertions (MBPP); or a text with assertions. At most 1,000. InvalidArgument,
// saying what it is instead.
absl::StatusOr<std::vector<CodeTest>> ParseCodeTests(absl::string_view truth);

// The program of an answer: the last block between ```python (or ```py) and ```; if there is none, the last block
// without a language; if there is none, the whole answer.
std::string ProgramOf(absl::string_view response);

// Whether an output is right: line by line, without white space at both ends of lines and empty lines at the end.
bool SameOutput(absl::string_view output, absl::string_view expected);

// Whether two values are the same: numbers are compared by value, floats to 1e-9 of their size.
bool SameValue(const nlohmann::json& a, const nlohmann::json& b);
// Whether a function's result is right: `expected` may be a list of the result alone, as in APPS.
bool SameResult(const nlohmann::json& result, const nlohmann::json& expected);

}  // namespace tdock::reward
