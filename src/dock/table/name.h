// Rules for names and tags.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tdock/rows.h"

namespace tdock::dock {

// InvalidArgument, beginning with `what`, unless `name` is 1 to 255 bytes of UTF-8 without control characters and
// invisible ones, such as those that turn text around (IsUnprintable()).
absl::Status CheckName(absl::string_view what, absl::string_view name);
// InvalidArgument if a row may not have these tags.
absl::Status CheckTags(const Tags& tags);

}  // namespace tdock::dock
