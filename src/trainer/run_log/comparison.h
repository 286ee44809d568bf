// A page that compares runs.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"

namespace tdock::trainer {

// More lines in one chart cannot be told apart.
constexpr size_t kMostComparedRuns = 16;

// Writes to `path` a self-contained page, which loads nothing else, about the runs in the folders `run_dirs`: the
// metrics that at least two of them have as charts with a line for each run, and the keys in which their configurations
// differ. Runs may still be going on. Text of the runs is untrusted, and reaches the page as data only.
//
// InvalidArgument for fewer than two folders or more than kMostComparedRuns; NotFound names a folder without
// metrics.jsonl. A configuration that cannot be read is reported in the page.
absl::Status WriteComparison(Env& env, std::span<const std::string> run_dirs, const std::string& path);

}  // namespace tdock::trainer
