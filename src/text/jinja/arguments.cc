#include "text/jinja/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/compare.h"

namespace tdock::jinja {

absl::StatusOr<std::vector<Value>> Bind(const Arguments& arguments, std::initializer_list<absl::string_view> names,
                                        size_t required) {
  if (arguments.positional.size() > names.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", arguments.positional.size(),
                                                   " arguments, and at most ", names.size(), " are taken"));
  }
  std::vector<Value> bound = arguments.positional;
  bound.resize(names.size(), Value::Missing());
  for (const auto& [name, value] : arguments.named) {
    const absl::string_view given = name.AsText().bytes();
    const auto* const found = std::find(names.begin(), names.end(), given);
    if (given.empty() || found == names.end())
      return absl::InvalidArgumentError(absl::StrCat("there is no parameter ", Quoted(given)));
    Value& place = bound[static_cast<size_t>(found - names.begin())];
    if (IsGiven(place))
      return absl::InvalidArgumentError(absl::StrCat("the argument ", Quoted(given), " is given twice"));
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!IsGiven(bound[i])) return absl::InvalidArgumentError(absl::StrCat("argument ", i + 1, " is missing"));
  }
  return bound;
}

absl::Status CheckText(const Value& value, absl::string_view what) {
  if (value.is_text()) return absl::OkStatus();
  if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
  return absl::InvalidArgumentError(absl::StrCat(what, " must be a string, not of the type ", TypeName(value)));
}

}  // namespace tdock::jinja
