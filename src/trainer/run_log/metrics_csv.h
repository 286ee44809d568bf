// The metrics of a run as a table for spreadsheets.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tdock::trainer {

// CSV as RFC 4180 has it, with a header: "step" and "phase", then every metric that any line of metrics.jsonl has, in
// the order of names. A row for each step, in the order of the file; a cell is empty where the line lacks the metric or
// its value is not finite. Lines that are not records are left out.
std::string MetricsCsv(absl::string_view metrics_jsonl);

}  // namespace tdock::trainer
