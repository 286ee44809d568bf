// Aligned columns for the terminal.
#pragma once

#include <string>
#include <vector>

namespace tdock::cli {

// The rows, of which each has as many cells, one line each: columns two spaces apart, numbers and sizes to the right,
// nothing behind the last cell. The first row are the headings. Cells are UTF-8 without control characters.
std::string TableText(const std::vector<std::vector<std::string>>& rows);

}  // namespace tdock::cli
