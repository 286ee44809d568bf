#include "serve/protocol/fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"

namespace tdock::serve {
namespace {

constexpr size_t kShown = 80;

std::string Shown(const nlohmann::json& value) {
  std::string text = AsciiJsonText(value);
  if (text.size() > kShown) text = absl::StrCat(text.substr(0, kShown), "…");
  return text;
}

}  // namespace

std::optional<nlohmann::json> ParseBody(absl::string_view body, int max_depth, std::optional<Problem>& problem) {
  absl::StatusOr<nlohmann::json> json = ParseJsonObject(body, max_depth);
  if (json.ok()) return *std::move(json);
  problem = Problem{.message = absl::StrCat("the body must be a JSON object: ", json.status().message()),
                    .code = "invalid_json"};
  return std::nullopt;
}

const nlohmann::json* Fields::Take(std::initializer_list<absl::string_view> names) {
  const nlohmann::json* found = nullptr;
  for (const absl::string_view name : names) {
    known_.emplace(name);
    const auto field = object_.find(std::string(name));
    if (found != nullptr || field == object_.end() || field->is_null()) continue;
    found = &*field;
    name_ = std::string(name);
  }
  return found;
}

void Fields::Ignore(std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) known_.emplace(name);
}

std::optional<double> Fields::Number(std::initializer_list<absl::string_view> names, double low, double high) {
  const nlohmann::json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (number >= low && number <= high) return number;
  Fail(absl::StrCat("is ", Shown(*value), ", and must be a number from ", low, " to ", high));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(std::initializer_list<absl::string_view> names, int64_t low, int64_t high) {
  const nlohmann::json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  // Of an unsigned number beyond int64_t, what get() gives would be another one.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits && value->get<int64_t>() >= low && value->get<int64_t>() <= high) return value->get<int64_t>();
  Fail(absl::StrCat("is ", Shown(*value), ", and must be a whole number from ", low, " to ", high));
  return std::nullopt;
}

std::optional<bool> Fields::Bool(std::initializer_list<absl::string_view> names) {
  const nlohmann::json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(absl::StrCat("is ", Shown(*value), ", and must be true or false"));
  return std::nullopt;
}

std::optional<std::string> Fields::String(std::initializer_list<absl::string_view> names) {
  const nlohmann::json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(absl::StrCat("is ", Shown(*value), ", and must be a string"));
  return std::nullopt;
}

void Fields::Fail(absl::string_view message, absl::string_view code) {
  if (problem_) return;
  const std::string name = absl::StrCat(within_, name_);
  problem_ = Problem{.message = absl::StrCat("'", name, "' ", message), .param = name, .code = std::string(code)};
}

void Fields::Refuse(absl::string_view name, absl::string_view why) {
  if (Take({name}) != nullptr) Fail(why, "unsupported_value");
}

void Fields::Finish() {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    name_ = EscapeForMessage(name, kShown);
    Fail("is not a field that this server knows", "unknown_parameter");
  }
}

}  // namespace tdock::serve
