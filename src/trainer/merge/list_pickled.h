// The text of listing/list_pickled.py.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::trainer {

extern const absl::string_view kListPickled;

}  // namespace tdock::trainer
