// Whether two mathematical answers are the same, written in LaTeX or plainly.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::reward {

// What is in the last \boxed{…} or \fbox{…} of a text. Nullopt if there is none, or if the last one is not closed.
// Linear in the text.
std::optional<std::string> LastBoxed(absl::string_view text);

// What follows the last "Answer:" of a text in its line, in any case, without the asterisks of Markdown. Nullopt if
// there is none, or nothing follows. Linear in the text.
std::optional<std::string> LastAnswerLine(absl::string_view text);

// Whether two answers are the same. The rules, with examples, are in docs/rewards.md; in short:
//   - notation does not matter: \dfrac12, \frac{1}{2}, 1/2 and 0.5 are the same, as are \sqrt3/2 and
//   \frac{\sqrt{3}}{2};
//   - nothing is computed or simplified except that fractions of integers are reduced, and numbers times a power of ten
//   are numbers, exactly;
//   - a unit, a percent or degree sign, or a name ("x =") may be missing on one side; if both have one, they must
//   agree;
//   - words such as "million" or "or more" behind a value are no unit;
//   - the order matters in tuples, intervals, and lists of words or letters, not in sets and other lists, nor in sums.
// Symmetric, and the result depends on nothing else. Answers of more than `kMaxMathBytes`, or nested too deeply, are
// the same if their texts are. Numbers of any length are compared exactly; if they exceed 64 bits, digit by digit.
//
// The rules follow those of the MATH data set (Hendrycks et al. 2021, arXiv:2103.03874) and of Minerva (Lewkowycz et
// al. 2022, arXiv:2206.14858, appendix D.1), except where these accept what differs, such as other units.
bool SameMathAnswer(absl::string_view a, absl::string_view b);

constexpr size_t kMaxMathBytes = 10'000;

}  // namespace tdock::reward
