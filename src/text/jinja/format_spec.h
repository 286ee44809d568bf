// The format specifications of Python, such as ">8.2f". Internal to this module.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/builder.h"
#include "text/jinja/object.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct FormatSpec {
  std::string fill = " ";  // one character
  char align = 0;          // '<', '>', '^', '=', 0: as is usual for the value
  char sign = '-';         // '+', ' ', '-'
  bool alternate = false;
  bool zero = false;
  char grouping = 0;  // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;  // -1: none
  char type = 0;
};

absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view spec);

// format(value, spec).
absl::StatusOr<Text> FormatValue(Machine& machine, const Value& value, absl::string_view spec);

// Of an integer: types b, c, d, o, x, X, n; of a number: e, E, f, F, g, G, n, %.
absl::StatusOr<std::string> FormatInteger(Machine& machine, const Value& value, const FormatSpec& spec);
absl::StatusOr<std::string> FormatFloat(Machine& machine, double value, const FormatSpec& spec);
Text FormatText(Machine& machine, const Text& text, const FormatSpec& spec);

}  // namespace tdock::jinja
