// Attributes, items and methods of values, as far as the sandbox permits. Internal to this module.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// value.name: the attribute, or else the item. Undefined where there is neither, and for what is not permitted.
absl::StatusOr<Value> GetAttribute(Machine& machine, const Value& value, const Value& name);
// value[key]: the item, or else the attribute.
absl::StatusOr<Value> GetItem(Machine& machine, const Value& value, const Value& key);
// The attribute alone.
absl::StatusOr<Value> GetOnlyAttribute(Machine& machine, const Value& value, const Value& name);

// Whether a value has a method of this name that may be called.
bool HasMethod(const Value& value, absl::string_view name);
absl::StatusOr<Value> CallMethod(Machine& machine, const Value& self, absl::string_view name, Arguments& arguments);

// The function of this name that templates have; nullptr where there is none.
Builtin::Call FindBuiltin(absl::string_view name);

}  // namespace tdock::jinja
