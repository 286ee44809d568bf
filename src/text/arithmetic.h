// Two-digit addition: a task small enough to learn in minutes on a CPU.
//
// The prompt is "37+85=": the operands have two digits each, so every prompt has six characters. The answer is the sum
// with its least significant digit first and no padding, "221" for 122, which is the order in which a model that
// writes one digit after another can compute the carries.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "text/problem.h"

namespace tdock::text {

// The characters that prompts and answers are made of.
inline constexpr absl::string_view kAdditionAlphabet = "0123456789+=";

// `x` and `y` are in 0 … 99.
Problem AdditionProblem(int x, int y);

// All 10,000 problems, each in one set.
struct AdditionSplit {
  PromptSet train;       // 8,744
  PromptSet validation;  // 256
  PromptSet test;        // 1,000
};

// The same seed gives the same sets in the same order. x+y and y+x are always in the same set.
AdditionSplit SplitAddition(uint64_t seed);

}  // namespace tdock::text
