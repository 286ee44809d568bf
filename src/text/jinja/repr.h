// Values as text: str(), repr() and json.dumps() of Python. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/object.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// InvalidArgument for what has no text that is the same each time, such as generators.
absl::StatusOr<Text> Str(Machine& machine, const Value& value);
absl::StatusOr<Text> Repr(Machine& machine, const Value& value);

struct JsonForm {
  bool ensure_ascii = false;
  std::optional<Text> indent;  // one level
  Text item_separator{std::string(", ")};
  Text key_separator{std::string(": ")};
  bool sort_keys = false;
};
absl::StatusOr<Text> ToJson(Machine& machine, const Value& value, const JsonForm& form);

std::string FloatRepr(double value);  // with a point or an exponent

}  // namespace tdock::jinja
