#include "dock/service/console/text_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::console {
namespace {

constexpr size_t kLongestName = 40;

bool BeginsCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

size_t Characters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

}  // namespace

std::string Grouped(int64_t count) {
  std::string digits = absl::StrCat(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string Mebibytes(int64_t bytes) {
  const int64_t tenths = (bytes * 10 + (1 << 19)) >> 20;
  return absl::StrCat(Grouped(tenths / 10), ".", tenths % 10, " MiB");
}

std::string Roughly(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "never";
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < 60) return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(10)));
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h", seconds % 3600 / 60, "m");
  return absl::StrCat(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

std::string Shown(absl::string_view name) {
  const std::string escaped = EscapeUnprintable(name);
  if (Characters(escaped) <= kLongestName) return escaped;
  size_t end = 0;
  for (size_t begun = 0; end < escaped.size(); ++end) {
    if (BeginsCharacter(escaped[end]) && ++begun == kLongestName) break;
  }
  return absl::StrCat(escaped.substr(0, end), "…");
}

std::vector<std::string> Sentences(absl::string_view text) {
  std::vector<std::string> sentences;
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (text[i] != '.' || text[i + 1] != ' ' || !absl::ascii_isupper(static_cast<unsigned char>(text[i + 2]))) continue;
    sentences.emplace_back(text.substr(0, i + 1));
    text.remove_prefix(i + 2);
    i = 0;
  }
  sentences.emplace_back(text);
  return sentences;
}

std::string Wrapped(absl::string_view text, size_t width) {
  std::string wrapped;
  for (const std::string& sentence : Sentences(EscapeUnprintable(text))) {
    size_t used = 0;
    if (!wrapped.empty()) wrapped += "\n";
    for (absl::string_view word : absl::StrSplit(sentence, ' ')) {
      const size_t length = Characters(word);
      if (used > 0) {
        const bool breaks = used + 1 + length > width;
        absl::StrAppend(&wrapped, breaks ? "\n" : " ");
        used = breaks ? 0 : used + 1;
      }
      absl::StrAppend(&wrapped, word);
      used += length;
    }
  }
  return wrapped;
}

TextTable::TextTable(std::vector<Heading> headings) : headings_(std::move(headings)) {
  for (Heading& heading : headings_) absl::AsciiStrToUpper(&heading.name);
}

void TextTable::Add(std::vector<std::string> cells) {
  TDOCK_CHECK(cells.size() == headings_.size(), "a line has one cell for each heading");
  lines_.push_back(std::move(cells));
}

std::ostream& operator<<(std::ostream& out, const TextTable& table) {
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.headings_.size(); ++i) {
    widths.push_back(Characters(table.headings_[i].name));
    for (const auto& line : table.lines_) widths[i] = std::max(widths[i], Characters(line[i]));
  }
  const auto write = [&](const auto& cell_of) {
    std::string text;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string space(widths[i] - Characters(cell), ' ');
      const bool right = table.headings_[i].align == TextTable::Align::kRight;
      absl::StrAppend(&text, i == 0 ? "" : "  ", right ? space : "", cell, right ? "" : space);
    }
    absl::StripTrailingAsciiWhitespace(&text);
    out << text << "\n";
  };
  write([&](size_t i) -> const std::string& { return table.headings_[i].name; });
  for (const auto& line : table.lines_) {
    write([&](size_t i) -> const std::string& { return line[i]; });
  }
  return out;
}

}  // namespace tdock::console
