// The page without its data: report.html, which the build turns into the definition of this constant.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Contains "{{run}}" once, which is replaced by the run's data as JSON.
extern const absl::string_view kReportTemplate;

}  // namespace tdock::trainer
