// The page without its data: report.html, which the build turns into the definition of this constant.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::train {

// Holds "{{run}}" once, where the run's data goes as JSON.
extern const absl::string_view kReportTemplate;

}  // namespace tdock::train
