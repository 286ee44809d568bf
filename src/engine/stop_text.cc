#include "engine/stop_text.h"

#include <algorithm>
#include <utility>

namespace tdock::engine {

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (size_t number = 0; number < texts_.size(); ++number) {
    borders_.emplace_back(2, 0);
    const std::string& text = texts_[number];
    for (size_t i = 1; i < text.size(); ++i) {
      borders_[number].push_back(static_cast<uint32_t>(Next(number, borders_[number][i], text[i])));
    }
  }
}

size_t StopTexts::Next(size_t number, size_t matched, char byte) const {
  const std::string& text = texts_[number];
  const std::vector<uint32_t>& borders = borders_[number];
  while (matched > 0 && (matched == text.size() || text[matched] != byte)) matched = borders[matched];
  return text[matched] == byte ? matched + 1 : 0;
}

size_t StopTextFinder::Read(char byte) {
  ++bytes_;
  size_t longest = 0;
  for (size_t number = 0; number < matched_.size(); ++number) {
    matched_[number] = stops_.Next(number, matched_[number], byte);
    if (matched_[number] == stops_.SizeOf(number)) longest = std::max(longest, matched_[number]);
  }
  return longest;
}

std::optional<size_t> StopTextFinder::Push(absl::string_view piece, bool heeded) {
  for (const char byte : piece) {
    const size_t size = Read(byte);
    if (heeded && size > 0) return bytes_ - size;
  }
  return std::nullopt;
}

size_t StopTextFinder::FirstBegun(absl::string_view piece) {
  size_t first = bytes_ + piece.size();
  for (const char byte : piece) {
    const size_t size = Read(byte);
    if (size > 0) first = std::min(first, bytes_ - size);
  }
  for (size_t number = 0; number < matched_.size(); ++number) {
    const bool is_whole = matched_[number] == stops_.SizeOf(number);
    first = std::min(first, bytes_ - (is_whole ? stops_.BorderOf(number) : matched_[number]));
  }
  return first;
}

}  // namespace tdock::engine
