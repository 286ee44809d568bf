// The methods of values. Internal to this module.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct NamedMethod {
  absl::string_view name;
  absl::StatusOr<Value> (*run)(Machine& machine, const Value& self, Arguments& arguments);
};

// Each nullptr where there is none.
const NamedMethod* FindTextMethod(absl::string_view name);
const NamedMethod* FindDictMethod(absl::string_view name);
const NamedMethod* FindListMethod(const Value& list, absl::string_view name);  // also of tuples
const NamedMethod* FindNumberMethod(const Value& number, absl::string_view name);

}  // namespace tdock::jinja
