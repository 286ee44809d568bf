// What somebody who mistyped a key may have meant. Internal to this module.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::config {

// The number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. Case does not
// count, nor does - against _.
size_t EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `key`, as a whole or in its last component (the right key in the wrong section); nothing if
// none is near enough to be meant, or `key` is longer than 200 bytes.
std::optional<std::string> NearestKey(absl::string_view key, std::span<const std::string> candidates);

}  // namespace tdock::config
