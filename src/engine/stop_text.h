// Finds stop texts in a text that arrives in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::engine {

// Of several stop texts, the one that is complete first counts, of those complete at the same byte the longest: the
// result does not depend on the pieces. Not thread-safe.
class StopTextFinder {
 public:
  // `stops` are not empty, and must outlive it.
  explicit StopTextFinder(std::span<const std::string> stops);

  // Where the stop text that `piece` completes begins, in bytes of the whole text. nullopt: none is complete.
  // Without `heeded`, stop texts that are complete within this piece do not count.
  std::optional<size_t> Push(absl::string_view piece, bool heeded = true);

 private:
  const std::span<const std::string> stops_;
  size_t longest_ = 0;
  std::string tail_;       // the end of the text, in which a stop text may have begun
  size_t tail_begin_ = 0;  // its place in the text
};

}  // namespace tdock::engine
