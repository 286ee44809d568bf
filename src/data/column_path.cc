#include "data/column_path.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"

namespace tdock::data {

ColumnPath FindColumn(const ColumnSet& columns, const std::string& name) {
  const absl::string_view whole = name;
  for (size_t end = whole.size(); end != absl::string_view::npos && end > 0; end = whole.rfind('.', end - 1)) {
    const absl::string_view column = whole.substr(0, end);
    if (!columns.contains(column)) continue;
    if (end == whole.size()) return {.column = name, .inside = {}};
    const std::vector<std::string> inside = absl::StrSplit(whole.substr(end + 1), '.');
    return {.column = std::string(column), .inside = inside};
  }
  return {.column = name, .inside = {}};
}

absl::StatusOr<Value> CellInside(Value cell, std::span<const std::string> inside) {
  for (const std::string& name : inside) {
    if (cell.is_nothing()) return cell;
    Object* const object = std::get_if<Object>(&cell);
    if (object == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("it holds ", cell.kind(), " where an object with \"", EscapeForMessage(name), "\" is expected"));
    }
    const auto field = std::find_if(object->begin(), object->end(), [&](const auto& f) { return f.first == name; });
    Value next = field == object->end() ? Value() : std::move(field->second);
    cell = std::move(next);
  }
  return cell;
}

}  // namespace tdock::data
