#include "text/json_fields.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

const Json& FieldOf(const Json& object, const char* key) {
  static const Json* const null = new Json;
  if (!object.is_object()) return *null;
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}

}  // namespace

std::string ShownJson(const Json& value) {
  if (value.is_object() && FieldOf(value, "type").is_string()) {
    return absl::StrCat("of type ", ShownJson(value["type"]));
  }
  if (value.is_structured()) return value.is_object() ? "an object" : "a list";
  return value.is_string() ? absl::StrCat("\"", EscapeForMessage(value.get_ref<const std::string&>()), "\"")
                           : JsonText(value);
}

JsonFields::JsonFields(const Json& value, absl::string_view where) : value_(value), where_(EscapeUnprintable(where)) {}

const Json& JsonFields::Get(const char* key) {
  asked_.insert(key);
  return FieldOf(value_, key);
}

absl::Status JsonFields::Object() const {
  if (value_.is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where_, " is ", ShownJson(value_), ", not an object"));
}

absl::StatusOr<std::string> JsonFields::String(const char* key) {
  const Json& value = Get(key);
  if (!value.is_string()) return Damaged(key, "text");
  return value.get<std::string>();
}

absl::StatusOr<bool> JsonFields::Bool(const char* key) {
  const Json& value = Get(key);
  if (!value.is_boolean()) return Damaged(key, "true or false");
  return value.get<bool>();
}

absl::StatusOr<bool> JsonFields::BoolOr(const char* key, bool absent) {
  if (Get(key).is_null()) return absent;
  return Bool(key);
}

absl::StatusOr<int32_t> JsonFields::Int(const char* key) {
  const Json& value = Get(key);
  if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int32_t>::max()) {
    return Damaged(key, "an integer from 0 to 2147483647");
  }
  return value.get<int32_t>();
}

absl::Status JsonFields::Finish() const {
  TDOCK_RETURN_IF_ERROR(Object());
  for (const auto& [key, value] : value_.items()) {
    if (asked_.contains(key)) continue;
    return absl::UnimplementedError(
        absl::StrCat(where_, ": the field \"", EscapeForMessage(key), "\" = ", ShownJson(value), " is not supported"));
  }
  return absl::OkStatus();
}

absl::Status JsonFields::Damaged(const char* key, absl::string_view wanted) const {
  TDOCK_RETURN_IF_ERROR(Object());
  const Json& value = FieldOf(value_, key);
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": \"", key, "\" is ", value.is_null() ? "missing" : ShownJson(value), ", not ", wanted));
}

absl::Status JsonFields::Unsupported(const char* key, absl::string_view known) const {
  TDOCK_RETURN_IF_ERROR(Object());
  return absl::UnimplementedError(
      absl::StrCat(where_, ": \"", key, "\" ", ShownJson(FieldOf(value_, key)), " is not supported; ", known));
}

}  // namespace tdock::text
