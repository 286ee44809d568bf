// LaTeX of answers as tokens, without what only concerns its look. Internal to this module.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::reward {

struct MathToken {
  enum class Kind {
    kNumber,   // a decimal without separators: "1000.5"
    kLetter,   // one letter
    kText,     // words: what was in \text{…}, or a unit behind a number; "°" for degrees, "$", "€", "£" or "¥"
    kCommand,  // "\frac", "\pi", "\begin{pmatrix}"
    kSymbol,   // any other character, as well as "\{", "\}" and "\\"
  };
  Kind kind;
  std::string text;
  bool spaced = false;  // with space in front of it
  enum class Join { kComma, kAnd, kOr };
  Join join = Join::kComma;  // what a "," was written as

  bool Is(absl::string_view symbol) const { return kind == Kind::kSymbol && text == symbol; }
  bool IsCommand(absl::string_view name) const { return kind == Kind::kCommand && text == name; }
};

// Synonyms have become the same token: \dfrac and \frac, "≤", \leq and \le, "·", \times and "*", "π" and \pi. The
// dollar signs of mathematics, spaces, \left, \right and the like are gone. Nullopt for more than `kMaxMathTokens`, or
// texts in texts.
constexpr size_t kMaxMathTokens = 4096;
std::optional<std::vector<MathToken>> MathTokens(absl::string_view text);

}  // namespace tdock::reward
