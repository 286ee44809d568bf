// Text for people: numbers, sizes, durations, and tables of them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tdock::console {

// "1,234,567".
std::string Grouped(int64_t count);
// "12.5 MiB"; always the same unit, so that columns can be compared.
std::string Mebibytes(int64_t bytes);
// "1.25s", "3m20s", "2h5m", "12d3h": the two units that matter; "never" for an infinite one.
std::string Roughly(absl::Duration duration);
// A name, printable; an ellipsis ends what is longer than 40 characters.
std::string Shown(absl::string_view name);
// The sentences of a text from a dock: each ends with a period before a space and a capital letter.
std::vector<std::string> Sentences(absl::string_view text);
// A text from a dock, printable, each sentence on lines of its own, of at most `width` characters where the words allow
// it.
std::string Wrapped(absl::string_view text, size_t width = 100);

// Aligned columns, two spaces apart. Not thread-safe.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Heading {
    std::string name;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Heading> headings);
  // One cell for each heading, in UTF-8.
  void Add(std::vector<std::string> cells);
  bool empty() const { return lines_.empty(); }
  // The headings come first, in capitals. Nothing follows the last cell of a line.
  friend std::ostream& operator<<(std::ostream& out, const TextTable& table);

 private:
  std::vector<Heading> headings_;
  std::vector<std::vector<std::string>> lines_;
};

}  // namespace tdock::console
