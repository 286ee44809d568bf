// A text that is the same for the same mathematical expression, written in different ways. Internal to this module.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "trainer/reward/math_tokens.h"

namespace tdock::reward {

// The form of an expression, or of any other sequence of tokens. In it
//   - a number is a fraction in lowest terms, as is a factor in front of a product: x/2, 0.5x and \frac{1}{2}x agree;
//   - the order of the terms of a sum does not matter, nor that of the elements of a set;
//   - a number with no operator in front of it, as in "1 234" or "x1", is not multiplied;
//   - arguments without braces, brackets around one factor, signs and mixed numbers (1\frac{1}{2}) are resolved.
// Nothing is computed beyond that: 3+4 is not 7, and \sqrt{12} not 2\sqrt{3}, so an expression taken from the question
// is not the answer to it. What is not understood stays as it is, in its place. Nullopt for nesting that is too deep.
std::optional<std::string> MathForm(std::span<const MathToken> tokens);

// Whether a command stands for a value, as "\pi" does, and not for a function of what follows.
bool IsValueCommand(absl::string_view command);

}  // namespace tdock::reward
