// What Hydra's users write on a command line. Internal to this module.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/config/spec.h"
#include "core/config/value.h"

namespace tdock::config {

struct Override {
  std::string key;
  std::string value;
};

// key=value, +key=value or ++key=value. InvalidArgument, in one sentence that quotes `text`, for anything else;
// `example` is a key to show in it.
absl::StatusOr<Override> ParseOverride(absl::string_view text, absl::string_view example);

// null is a null, 'x' and "x" are the text x, in which a \ before a quote is left out, and with `takes_list` brackets
// are a list in the syntax of a file. Everything else is a text as it is. Nothing if a quote or a bracket is not closed
// at the end.
std::optional<Value> ParseInlineValue(absl::string_view text, bool takes_list, const Limits& limits);

}  // namespace tdock::config
