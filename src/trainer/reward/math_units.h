// Units behind the numbers of answers. Internal to this module.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tdock::reward {

// Whether a word in lower case is known to name a unit, or a part of one ("square", "per"): "cm", "inches", "m".
bool IsUnitWord(absl::string_view word);

// The same text for each way of writing a unit: "cm^2" for "cm^2", "square centimeters" and "sq. cm". What is not known
// is itself in lower case, without the ending of a plural. Empty for "units".
std::string UnitName(absl::string_view unit);

}  // namespace tdock::reward
