// What `tdock runs` says of runs, as text.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/run_log/run_summary.h"

namespace tdock::cli {

// A line for each run.
std::string ListText(std::span<const trainer::RunSummary> runs);
// The same as a JSON list of objects: "path", "recipe", "state", "last_step" (or null), "metrics" (the last value of
// each), "bytes", "changed" (RFC 3339).
std::string ListJson(std::span<const trainer::RunSummary> runs);

// Everything about one run: its state, its files, how to go on, its checkpoints, its metrics. With `all` also those of
// time, speed and the dock.
absl::StatusOr<std::string> ShowText(Env& env, const trainer::RunSummary& run, bool all);

// The keys of the configurations that differ, and the last and best values of the metrics.
std::string CompareText(std::span<const trainer::RunSummary> runs, bool all);

}  // namespace tdock::cli
