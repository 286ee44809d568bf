// Finds stop texts in a text that arrives in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::engine {

// Stop texts, with what it takes to find each in one pass over a text (Knuth, Morris and Pratt 1977). Immutable, and so
// thread-safe.
class StopTexts {
 public:
  // None is empty.
  explicit StopTexts(std::vector<std::string> texts);

  size_t count() const { return texts_.size(); }
  size_t SizeOf(size_t number) const { return texts_[number].size(); }
  // How many bytes of a stop text a text ends with once it has one byte more: at most all of them, and as many as
  // possible. `matched` is the number before.
  size_t Next(size_t number, size_t matched, char byte) const;
  // How many bytes at the end of this stop text are its beginning, too, but not all of it.
  size_t BorderOf(size_t number) const { return borders_[number].back(); }

 private:
  std::vector<std::string> texts_;
  // borders_[number][bytes]: of those first bytes, how many at their end are also their beginning, but not all.
  std::vector<std::vector<uint32_t>> borders_;
};

// Of several stop texts, the one that is complete first counts, of those complete at the same byte the longest: the
// result does not depend on the pieces. Each byte takes a time that does not depend on their length. Not thread-safe.
class StopTextFinder {
 public:
  // `stops` must outlive it.
  explicit StopTextFinder(const StopTexts& stops) : stops_(stops), matched_(stops.count()) {}

  // Where the stop text that `piece` completes begins, in bytes of the whole text; what follows it is not read.
  // nullopt: none is complete. Without `heeded`, stop texts that are complete within this piece do not count.
  std::optional<size_t> Push(absl::string_view piece, bool heeded = true);
  // Where the first stop text begins that `piece` completes, or that may be complete once more follows; the end of the
  // text if there is none.
  size_t FirstBegun(absl::string_view piece);

 private:
  // The size of the longest stop text that the byte completes; 0: none.
  size_t Read(char byte);

  const StopTexts& stops_;
  std::vector<size_t> matched_;  // of each stop text, the bytes that the text ends with
  size_t bytes_ = 0;             // of the text
};

}  // namespace tdock::engine
