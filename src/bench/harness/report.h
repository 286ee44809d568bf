// Results as a table and as JSON.
#pragma once

#include <span>
#include <string>

#include "bench/harness/harness.h"
#include "bench/harness/machine.h"

namespace tdock::bench {

// Lines of a table whose first column has `name_width` characters, each with its line end. The spread is the distance
// between the lowest and the highest run, in percent of the median.
std::string TableHead(size_t name_width);
std::string TableRow(const Result& result, size_t name_width);

// {"machine": {…}, "settings": {…}, "results": [{"name", "unit", "median", "runs", and where there is a reference
// "ratio", "of", "reference_runs", and its details by their names}, …]}
std::string ReportJson(const Machine& machine, const Settings& settings, std::span<const Result> results);

}  // namespace tdock::bench
