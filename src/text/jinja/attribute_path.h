// The attribute that filters such as sort and map look at. Internal to this module.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// "a.b.0", an integer, or nothing, which is the item itself. Immutable, and so thread-safe.
class AttributePath {
 public:
  AttributePath() = default;
  AttributePath(Machine& machine, const Value& attribute);

  // `otherwise`, if given and not none, takes the place of what is undefined.
  absl::StatusOr<Value> Of(Machine& machine, const Value& item, const Value& otherwise) const;
  absl::StatusOr<Value> Of(Machine& machine, const Value& item) const { return Of(machine, item, Value::Missing()); }

 private:
  std::vector<Value> parts_;
};

// Strings in lower case, where `case_sensitive` is false.
Value CaseKey(Machine& machine, const Value& value, bool case_sensitive);

}  // namespace tdock::jinja
