// Regular expressions that users write, in the syntax of PCRE2, which is that of Perl and nearly that of Python.
// Those of tokenizer.json have a syntax of their own: regex.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::text {

// Immutable, and so thread-safe.
class Pattern {
 public:
  enum class Extent {
    kAnywhere,  // matches a text that contains a match
    kWhole,     // matches a text that is one
  };
  static constexpr size_t kMaxBytes = 1 << 16;

  // InvalidArgument for what is not a pattern, with the place and the reason. The pattern comes from somebody who is
  // trusted with the time that a match may take, the texts need not.
  static absl::StatusOr<Pattern> Compile(absl::string_view pattern, Extent extent);

  // Whether `text` matches; in it, bytes that are not UTF-8 count as U+FFFD. Nullopt if a limit on backtracking or
  // memory ends the search before that is known, which happens at the same place each time.
  std::optional<bool> Matches(absl::string_view text) const;

 private:
  struct Code;

  explicit Pattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

// A pattern that matches exactly `text`. Bytes that are not UTF-8 become U+FFFD.
std::string EscapeForPattern(absl::string_view text);

}  // namespace tdock::text
