// The tests of templates, as in `x is defined`. Internal to this module.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct Predicate {
  absl::string_view name;
  absl::StatusOr<bool> (*run)(Machine& machine, const Value& input, Arguments& arguments);
};

// Nullptr where there is none.
const Predicate* FindPredicate(absl::string_view name);

}  // namespace tdock::jinja
