// The regular expressions of tokenizer.json, which are Oniguruma's (Ruby syntax), run by PCRE2. Internal to this
// module.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/encode_budget.h"
#include "text/tokenizer.h"

namespace tdock::text {

// `pattern` as PCRE2 must be given it to mean the same there. What differs between the two and has no such form is
// Unimplemented, named.
absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern);

// Immutable, and so thread-safe.
class Regex {
 public:
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  // One that matches this text.
  static absl::StatusOr<Regex> Literal(absl::string_view text);

  // Every match in `text`, which is UTF-8, from left to right; an empty one right behind another match does not count.
  // Finds only the first max_matches + 1 matches that are not empty. InvalidArgument for a
  // match that takes too long to find, or too much memory; the error of the budget's stop check.
  absl::StatusOr<std::vector<TextRange>> FindAll(absl::string_view text, EncodeBudget& budget,
                                                 size_t max_matches = std::numeric_limits<size_t>::max()) const;

 private:
  struct Code;

  Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  static absl::StatusOr<Regex> Make(const std::string& translated, uint32_t options, absl::string_view shown);

  std::shared_ptr<const Code> code_;
};

}  // namespace tdock::text
