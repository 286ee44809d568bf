// Chooses benchmarks and runs them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/harness/benchmark.h"

namespace tdock::bench {

struct Result {
  std::string name;
  std::string unit;
  std::vector<double> runs;
  double median = 0;
  // How many times as good as the reference, above 1 where the benchmark is better: the median over the pairs of
  // neighbouring runs, so that a machine that slows down half-way slows both.
  std::optional<double> ratio;
  std::string of;
  std::vector<double> reference_runs;
  // The median of each detail.
  std::vector<Detail> details;
};

// `values` must not be empty.
double Median(std::vector<double> values);

// The first component of a name.
absl::string_view GroupOf(absl::string_view name);

// The benchmarks whose name is one of `names`, or starts with one up to a '/', and contains `filter`, in their order.
// No names: all. InvalidArgument names the groups where a name chooses nothing.
absl::StatusOr<std::vector<const Benchmark*>> Select(std::span<const Benchmark> benchmarks,
                                                     std::span<const std::string> names, absl::string_view filter);

// Called with the progress: run 0 is the preparation with the first, uncounted run.
using Watcher = std::function<void(const Benchmark& benchmark, int run)>;

// Prepares the benchmark, runs it once unrecorded to warm up, and then `settings.runs` times, each time followed by
// its reference. Errors name the benchmark; a figure that is not finite and positive is Internal.
absl::StatusOr<Result> Measure(const Benchmark& benchmark, const Settings& settings, const Watcher& watcher);

}  // namespace tdock::bench
