#include "core/base/nearest.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"

namespace tdock {
namespace {

constexpr size_t kLongestKey = 200;
constexpr size_t kFar = 1000;  // a distance beyond any of keys

char Fold(char c) { return c == '-' ? '_' : absl::ascii_tolower(c); }

absl::string_view LastComponent(absl::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == absl::string_view::npos ? key : key.substr(dot + 1);
}

bool NearEnough(size_t distance, size_t length) { return distance <= std::max<size_t>(length > 2 ? 2 : 1, length / 3); }

// The least distance that texts of these lengths can have.
size_t DifferenceInLength(absl::string_view a, absl::string_view b) {
  return std::max(a.size(), b.size()) - std::min(a.size(), b.size());
}

}  // namespace

// Optimal string alignment: three rows of the usual table.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = last[j - 1] + (Fold(a[i - 1]) == Fold(b[j - 1]) ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && Fold(a[i - 1]) == Fold(b[j - 2]) && Fold(a[i - 2]) == Fold(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> NearestKey(absl::string_view key, std::span<const std::string> candidates) {
  if (key.size() > kLongestKey) return std::nullopt;
  std::optional<std::string> nearest;
  std::tuple<size_t, size_t> nearest_rank;
  for (const std::string& candidate : candidates) {
    const absl::string_view given = LastComponent(key), known = LastComponent(candidate);
    // Most candidates are ruled out by their length alone.
    const bool component_may_be_near = NearEnough(DifferenceInLength(given, known), known.size());
    const size_t component = component_may_be_near ? EditDistance(given, known) : kFar;
    const bool component_is_near = NearEnough(component, known.size());
    if (!component_is_near && !NearEnough(DifferenceInLength(key, candidate), candidate.size())) continue;
    const size_t whole = EditDistance(key, candidate);
    if (!component_is_near && !NearEnough(whole, candidate.size())) continue;
    // A misplaced key counts as one more mistake, whatever its section.
    const std::tuple<size_t, size_t> rank(std::min(whole, component + 1), whole);
    if (!nearest || rank < nearest_rank) {
      nearest = candidate;
      nearest_rank = rank;
    }
  }
  return nearest;
}

}  // namespace tdock
