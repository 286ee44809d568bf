// The filters of templates. Internal to this module.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct Filter {
  absl::string_view name;
  absl::StatusOr<Value> (*run)(Machine& machine, const Value& input, Arguments& arguments);
};

// Nullptr where there is none.
const Filter* FindFilter(absl::string_view name);

}  // namespace tdock::jinja
