#include "cli/json_line.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

absl::StatusOr<Json> ParseJsonLine(absl::string_view line) {
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  Json json = Json::parse(
      line,
      [&](int depth, Json::parse_event_t, Json&) {
        too_deep = too_deep || depth > kMaxDepth;
        return !too_deep;
      },
      /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError(absl::StrCat("it nests deeper than ", kMaxDepth, " levels"));
  if (json.is_discarded()) return absl::InvalidArgumentError("it is not JSON");
  return json;
}

data::Value CellOf(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer() && !json.is_number_unsigned()) return json.get<int64_t>();
  if (json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX}) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    data::List list;
    for (const auto& item : json) list.push_back(CellOf(item));
    return list;
  }
  data::Object object;
  for (const auto& [name, item] : json.items()) object.emplace_back(name, CellOf(item));
  return json.is_object() ? data::Value(std::move(object)) : data::Value();
}

}  // namespace tdock::cli
