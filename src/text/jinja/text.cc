#include "text/jinja/text.h"

#include <algorithm>

namespace tdock::jinja {

void Text::Extend(size_t bytes, Source source) {
  if (bytes == 0) return;
  const size_t before = bytes_.size() - bytes;  // which are appended already
  if (before == 0) {
    first_ = source;
    runs_.clear();
    return;
  }
  if (runs_.empty()) {
    if (source == first_) return;
    runs_.push_back({before, first_});
  }
  if (runs_.back().source == source) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), source});
  }
}

void Text::Append(absl::string_view bytes, Source source) {
  bytes_.append(bytes.data(), bytes.size());
  Extend(bytes.size(), source);
}

size_t Text::RunAt(size_t offset) const {
  const auto found = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                      [](size_t wanted, const Run& run) { return wanted < run.end; });
  return static_cast<size_t>(found - runs_.begin());
}

Source Text::SourceAt(size_t offset) const { return runs_.empty() ? first_ : runs_[RunAt(offset)].source; }

std::vector<Text::Run> Text::runs() const {
  if (empty()) return {};
  if (runs_.empty()) return {{size(), first_}};
  return runs_;
}

void Text::Append(const Text& text, size_t begin, size_t end) {
  if (begin >= end) return;
  if (text.runs_.empty()) return Append(text.bytes().substr(begin, end - begin), text.first_);
  for (size_t run = text.RunAt(begin); begin < end; ++run) {
    const size_t run_end = std::min(end, text.runs_[run].end);
    Append(text.bytes().substr(begin, run_end - begin), text.runs_[run].source);
    begin = run_end;
  }
}

Text Text::Substr(size_t begin, size_t end) const {
  Text part;
  part.Append(*this, begin, end);
  return part;
}

void Text::AppendStamped(const Text& text, int32_t mark, int32_t generation) {
  const auto stamped = [&](Source source) {
    if (source.mark < 0) source.mark = mark;
    if (source.generation < 0) source.generation = generation;
    return source;
  };
  if (text.runs_.empty()) return Append(text.bytes(), stamped(text.first_));
  size_t begin = 0;
  for (const Run& run : text.runs_) {
    Append(text.bytes().substr(begin, run.end - begin), stamped(run.source));
    begin = run.end;
  }
}

}  // namespace tdock::jinja
