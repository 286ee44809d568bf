#include "cli/runs/text_table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tdock::cli {
namespace {

// Of the characters, each of which is taken to be one column wide.
size_t Width(absl::string_view cell) {
  return static_cast<size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool IsNumber(absl::string_view cell) {
  if (cell.empty()) return true;
  const char first = cell[0] == '-' && cell.size() > 1 ? cell[1] : cell[0];
  return absl::ascii_isdigit(static_cast<unsigned char>(first));
}

}  // namespace

std::string TableText(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::string text;
  const size_t columns = rows[0].size();
  std::vector<size_t> widths(columns);
  std::vector<bool> to_right(columns, rows.size() > 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t column = 0; column < columns; ++column) {
      widths[column] = std::max(widths[column], Width(rows[i][column]));
      if (i > 0 && !IsNumber(rows[i][column])) to_right[column] = false;
    }
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t column = 0; column < columns; ++column) {
      const std::string space(widths[column] - Width(row[column]), ' ');
      absl::StrAppend(&line, column > 0 ? "  " : "", to_right[column] ? space : "", row[column],
                      to_right[column] ? "" : space);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

}  // namespace tdock::cli
