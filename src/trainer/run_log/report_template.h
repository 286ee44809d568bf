// The pages without their data. The build turns the files that are named here into the definitions of these constants.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Each page contains "{{style}}", "{{charts}}" and "{{run}}" once, for the next two and for its data as JSON; that of a
// run also "{{timeline}}" and "{{run_view}}". That of runs that are followed has "{{nonce}}", "{{live}}" and
// "{{overview}}", and no data.
extern const absl::string_view kReportTemplate;      // report.html
extern const absl::string_view kComparisonTemplate;  // comparison.html
extern const absl::string_view kPageStyle;           // page_style.css
extern const absl::string_view kChartsScript;        // charts.js
extern const absl::string_view kTimelineScript;      // timeline.js
extern const absl::string_view kRunViewScript;       // run_view.js
extern const absl::string_view kLiveTemplate;        // live.html
extern const absl::string_view kLiveScript;          // live.js
extern const absl::string_view kOverviewScript;      // overview.js

}  // namespace tdock::trainer
