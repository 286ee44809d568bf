// A string of which each character knows where it comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::jinja {

// Where a character came from: the template, or data, by a number that the caller chose, 0 or more.
using Origin = int32_t;
inline constexpr Origin kOfTemplate = -1;

// What is known about a character.
struct Source {
  Origin origin = kOfTemplate;
  int32_t mark = -1;        // of the dict that a loop was at when the template put the character out; -1: of none
  int32_t generation = -1;  // which {% generation %} block put it out, counted from 0; -1: none

  friend bool operator==(const Source&, const Source&) = default;
};

// UTF-8 bytes and the sources of their characters. A text of one source costs no more than a string.
// Not thread-safe where one thread changes it.
class Text {
 public:
  // The bytes from the end of the run before up to `end`.
  struct Run {
    size_t end;
    Source source;

    friend bool operator==(const Run&, const Run&) = default;
  };

  Text() = default;
  explicit Text(std::string bytes, Source source = {}) : bytes_(std::move(bytes)), first_(source) {}
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)), first_{origin, -1, -1} {}

  absl::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Of a text with several sources, at least two runs, adjacent ones different; otherwise one run, none if it is empty.
  std::vector<Run> runs() const;
  // Of the byte at `offset`, which is inside of the text.
  Source SourceAt(size_t offset) const;

  // Bytes from `begin` up to `end`, which must be ends of characters.
  Text Substr(size_t begin, size_t end) const;
  void Append(absl::string_view bytes, Source source);
  void Append(absl::string_view bytes) { Append(bytes, Source{}); }
  void Append(const Text& text) { Append(text, 0, text.size()); }
  void Append(const Text& text, size_t begin, size_t end);
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }

  // With `mark` and `generation` for the characters that have none.
  void AppendStamped(const Text& text, int32_t mark, int32_t generation);

  std::string TakeBytes() && { return std::move(bytes_); }
  // What it occupies beyond itself.
  size_t memory_bytes() const { return bytes_.capacity() + runs_.capacity() * sizeof(Run); }

 private:
  void Extend(size_t bytes, Source source);
  size_t RunAt(size_t offset) const;

  std::string bytes_;
  Source first_;           // of all of it, where runs_ is empty
  std::vector<Run> runs_;  // merged
};

}  // namespace tdock::jinja
