// Suggestions for mistyped keys, commands and options.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock {

// The number of insertions, deletions, substitutions and transpositions that turn `a` into `b`, ignoring case and the
// difference between - and _.
size_t EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `key`, as a whole or in its last component (the right key in the wrong section); nothing if
// none is near enough, or `key` is longer than 200 bytes.
std::optional<std::string> NearestKey(absl::string_view key, std::span<const std::string> candidates);

}  // namespace tdock
