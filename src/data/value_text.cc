#include "data/value_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::data {
namespace {

absl::StatusOr<std::string> ShortestDecimal(double number) {
  if (!std::isfinite(number)) {
    return absl::InvalidArgumentError(absl::StrCat("it holds ", number, "; a finite number is expected"));
  }
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  return std::string(digits.data(), end.ptr);
}

// Values nest no deeper than RecordLimits::max_depth.
absl::Status AppendJson(const Value& value, bool with_nothing, std::string& json) {
  if (value.text() != nullptr) {
    json += JsonText(nlohmann::json(*value.text()));
  } else if (value.list() != nullptr) {
    absl::string_view before = "[";
    for (const Value& item : *value.list()) {
      absl::StrAppend(&json, before);
      before = ", ";
      TDOCK_RETURN_IF_ERROR(AppendJson(item, with_nothing, json));
    }
    absl::StrAppend(&json, value.list()->empty() ? "[]" : "]");
  } else if (value.object() != nullptr) {
    absl::string_view before = "{";
    for (const auto& [name, item] : *value.object()) {
      if (item.is_nothing() && !with_nothing) continue;
      absl::StrAppend(&json, before, JsonText(nlohmann::json(name)), ": ");
      before = ", ";
      TDOCK_RETURN_IF_ERROR(AppendJson(item, with_nothing, json));
    }
    absl::StrAppend(&json, before == "{" ? "{}" : "}");
  } else if (value.is_nothing()) {
    json += "null";
  } else {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, TextOfValue(value));
    json += text;
    // What was a float stays one for who reads the JSON.
    const bool is_float = std::holds_alternative<double>(value) && text.find_first_of(".en") == std::string::npos;
    if (is_float && !with_nothing) json += ".0";
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> TextOfValue(const Value& value) {
  if (value.is_nothing()) return "";
  if (value.text() != nullptr) return *value.text();
  if (const bool* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return absl::StrCat(*whole);
  if (const double* number = std::get_if<double>(&value)) return ShortestDecimal(*number);
  std::string json;
  TDOCK_RETURN_IF_ERROR(AppendJson(value, /*with_nothing=*/true, json));
  return json;
}

absl::StatusOr<std::string> JsonOfValue(const Value& value) {
  std::string json;
  TDOCK_RETURN_IF_ERROR(AppendJson(value, /*with_nothing=*/false, json));
  return json;
}

absl::StatusOr<nlohmann::ordered_json> JsonTreeOfValue(const Value& value) {
  using Json = nlohmann::ordered_json;
  if (value.is_nothing()) return Json();
  if (value.text() != nullptr) return Json(*value.text());
  if (const bool* truth = std::get_if<bool>(&value)) return Json(*truth);
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return Json(*whole);
  if (const double* number = std::get_if<double>(&value)) {
    TDOCK_RETURN_IF_ERROR(ShortestDecimal(*number).status());
    return Json(*number);
  }
  if (value.list() != nullptr) {
    Json list = Json::array();
    for (const Value& item : *value.list()) {
      TDOCK_ASSIGN_OR_RETURN(Json read, JsonTreeOfValue(item));
      list.push_back(std::move(read));
    }
    return list;
  }
  Json object = Json::object();
  for (const auto& [name, item] : *value.object()) {
    if (item.is_nothing()) continue;
    TDOCK_ASSIGN_OR_RETURN(Json read, JsonTreeOfValue(item));
    // Looking for the name, which is there only once, would take as long as there are names.
    object.get_ref<Json::object_t&>().emplace_back(name, std::move(read));
  }
  return object;
}

}  // namespace tdock::data
