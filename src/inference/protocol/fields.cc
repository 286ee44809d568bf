#include "inference/protocol/fields.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShown = 80;
// An ordered object finds a name by going through all before it.
constexpr uint64_t kMaxNames = 4096, kMaxComparedNames = uint64_t{1} << 26;

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = absl::StrCat(text.substr(0, kShown), "…");
  return text;
}

// True if ordered objects of this are made soon. Adds to `compared` how many names that takes to compare.
bool HasFewNames(const nlohmann::json& value, uint64_t& compared) {
  if (value.is_object()) compared += value.size() * value.size() / 2;
  if (compared > kMaxComparedNames || (value.is_object() && value.size() > kMaxNames)) return false;
  return !value.is_structured() ||
         std::all_of(value.begin(), value.end(), [&](const nlohmann::json& one) { return HasFewNames(one, compared); });
}

}  // namespace

std::optional<Json> ParseBody(absl::string_view body, int max_depth, std::optional<Problem>& problem) {
  const auto fail = [&](absl::string_view why) {
    problem = Problem{.message = absl::StrCat("the body must be a JSON object: ", why), .code = "invalid_json"};
    return std::nullopt;
  };
  const auto checked = ParseJsonObject(body, max_depth);
  if (!checked.ok()) return fail(checked.status().message());
  uint64_t compared = 0;
  if (!HasFewNames(*checked, compared)) {
    return fail(absl::StrCat("it has objects with too many names; one may have ", kMaxNames));
  }
  return ReadOrderedJson(body);
}

const Json* Fields::Take(std::initializer_list<absl::string_view> names) {
  const Json* found = nullptr;
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
  const Json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (number >= low && number <= high) return number;
  Fail(absl::StrCat("is ", Shown(*value), ", and must be a number from ", low, " to ", high));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(std::initializer_list<absl::string_view> names, int64_t low, int64_t high) {
  const Json* const value = Take(names);
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
  const Json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(absl::StrCat("is ", Shown(*value), ", and must be true or false"));
  return std::nullopt;
}

std::optional<std::string> Fields::String(std::initializer_list<absl::string_view> names) {
  const Json* const value = Take(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(absl::StrCat("is ", Shown(*value), ", and must be a string"));
  return std::nullopt;
}

void Fields::Fail(absl::string_view message, absl::string_view code) {
  if (problem_) return;
  const std::string name = path();
  problem_ = Problem{.message = absl::StrCat("'", name, "' ", message), .param = name, .code = std::string(code)};
}

void Fields::FailFor(absl::string_view name, absl::string_view message, absl::string_view code) {
  name_ = std::string(name);
  Fail(message, code);
}

void Fields::FailAt(absl::string_view where, absl::string_view message, absl::string_view code) {
  const std::string name = name_;
  absl::StrAppend(&name_, where);
  Fail(message, code);
  name_ = name;
}

void Fields::RefuseOthers(std::span<const DefaultField> defaults) {
  for (const DefaultField& one : defaults) {
    const Json* const value = Take({one.name});
    if (value == nullptr) continue;
    const bool is_default = std::any_of(defaults.begin(), defaults.end(), [&](const DefaultField& other) {
      return other.name == one.name && *value == ReadOrderedJson(other.value);
    });
    if (!is_default) Fail(absl::StrCat("is ", Shown(*value), ": ", one.why), "unsupported_value");
  }
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

}  // namespace tdock::inference
