// "…" % …, str.format and the format specifications of Python. Internal to this module.
#pragma once

#include "absl/status/statusor.h"
#include "text/jinja/object.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// `values` is a tuple of them, a dict for names, or the only value.
absl::StatusOr<Text> FormatPercent(Machine& machine, const Text& format, const Value& values);
absl::StatusOr<Text> FormatBraces(Machine& machine, const Text& format, const Arguments& arguments);

}  // namespace tdock::jinja
