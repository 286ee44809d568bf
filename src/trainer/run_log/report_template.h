// The pages without their data. The build turns the files that are named here into the definitions of these constants.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Each page contains "{{style}}", "{{charts}}" and "{{run}}" once, for the next two and for its data as JSON; that of a
// run also "{{timeline}}".
extern const absl::string_view kReportTemplate;      // report.html
extern const absl::string_view kComparisonTemplate;  // comparison.html
extern const absl::string_view kPageStyle;           // page_style.css
extern const absl::string_view kChartsScript;        // charts.js
extern const absl::string_view kTimelineScript;      // timeline.js

}  // namespace tdock::trainer
