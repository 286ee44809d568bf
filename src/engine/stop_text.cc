#include "engine/stop_text.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace tdock::engine {

StopTextFinder::StopTextFinder(std::span<const std::string> stops) : stops_(stops) {
  for (const std::string& stop : stops) longest_ = std::max(longest_, stop.size());
}

std::optional<size_t> StopTextFinder::Push(absl::string_view piece, bool heeded) {
  const size_t old = tail_.size();
  tail_.append(piece.data(), piece.size());
  for (size_t end = old + 1; heeded && end <= tail_.size(); ++end) {
    const absl::string_view text = absl::string_view(tail_).substr(0, end);
    size_t matched = 0;
    for (const std::string& stop : stops_) {
      if (absl::EndsWith(text, stop)) matched = std::max(matched, stop.size());
    }
    if (matched > 0) return tail_begin_ + end - matched;
  }
  const size_t kept = std::min(tail_.size(), longest_ == 0 ? 0 : longest_ - 1);
  tail_begin_ += tail_.size() - kept;
  tail_.erase(0, tail_.size() - kept);
  return std::nullopt;
}

}  // namespace tdock::engine
