// One call of `tdock bench`.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/harness/harness.h"
#include "bench/harness/machine.h"
#include "core/base/env.h"

namespace tdock::bench {

struct SuiteRequest {
  std::vector<std::string> names;  // groups, names, or what names start with; none: all
  std::string filter;              // part of a name
  std::string json_path;           // empty: no file
  bool list = false;               // name the benchmarks instead of running them
};

struct SuiteContext {
  Env& env;
  std::ostream& out;  // the table, a row as soon as it is known
  Watcher watcher;
  // Called before a row is written, because both may be the same terminal.
  std::function<void()> before_row = [] {};
};

// Stops at the first benchmark that fails; the file is written when all have succeeded. InvalidArgument for names that
// match nothing; NotFound, before anything is measured, if the folder of `json_path` does not exist.
absl::Status RunSuite(std::span<const Benchmark> benchmarks, const SuiteRequest& request, const Settings& settings,
                      const Machine& machine, const SuiteContext& context);

}  // namespace tdock::bench
