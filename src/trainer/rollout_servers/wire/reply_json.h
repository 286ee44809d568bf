// Values of JSON from servers, which may be of any type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::trainer {

// InvalidArgument for text that is not a JSON object.
inline absl::StatusOr<nlohmann::json> ParseReply(absl::string_view body) {
  constexpr int kMaxDepth = 32;
  absl::StatusOr<nlohmann::json> json = ParseJsonObject(body, kMaxDepth);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat("its answer is no JSON object: ", json.status().message()));
}

// object[name]; null if there is none.
inline const nlohmann::json& At(const nlohmann::json& object, const char* name) {
  static const nlohmann::json* const kNone = new nlohmann::json();
  if (!object.is_object()) return *kNone;
  const auto found = object.find(name);
  return found == object.end() ? *kNone : *found;
}

// Empty if the member is not a text.
inline std::string TextAt(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = At(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

// A whole number, or a text that is one.
inline std::optional<int64_t> Whole(const nlohmann::json& value) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto big = value.get<uint64_t>();
    if (!std::in_range<int64_t>(big)) return std::nullopt;
    return static_cast<int64_t>(big);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) return number;
  return std::nullopt;
}

}  // namespace tdock::trainer
