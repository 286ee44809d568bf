// The parameters of filters, tests, methods and functions. Internal to this module.
#pragma once

#include <initializer_list>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// The value of each parameter, in order, missing where it was not given. A parameter without a name is positional only.
// InvalidArgument where one of the first `required` lacks, and for arguments that no parameter takes.
absl::StatusOr<std::vector<Value>> Bind(const Arguments& arguments, std::initializer_list<absl::string_view> names,
                                        size_t required = 0);

inline bool IsGiven(const Value& value) { return value.kind() != Value::Kind::kMissing; }
inline bool IsGivenAndNotNone(const Value& value) { return IsGiven(value) && value.kind() != Value::Kind::kNone; }
// Of a parameter that must be a string; InvalidArgument otherwise.
absl::Status CheckText(const Value& value, absl::string_view what);

}  // namespace tdock::jinja
