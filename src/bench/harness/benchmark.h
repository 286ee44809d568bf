// The benchmarks of `tdock bench`: named functions that time one run.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace tdock::bench {

struct Settings {
  Clock& clock;
  int runs = 5;                // of each benchmark, and of its reference
  int threads = 1;             // for what is not measured on one thread by definition
  bool quick = false;          // small sizes, to see that everything works
  std::string device = "cpu";  // for models
  std::string peer = {};       // a program that benchmarks alternate with, instead of their references: see peer.h
};

struct Detail {
  std::string name;  // a key of the report, such as "p99"
  double value = 0;
};

struct Figure {
  Figure(double figure, std::vector<Detail> more = {}) : value(figure), details(std::move(more)) {}

  double value;
  std::vector<Detail> details;  // the same ones in every run
};

// One timed run. Returns its figure, in the benchmark's unit; what it sets up or puts back is outside of the timing.
using TimedRun = std::function<absl::StatusOr<Figure>()>;

// A benchmark that is set up. The functions own what they need.
struct Prepared {
  TimedRun run;
  TimedRun reference = {};  // the same amount of work done by what `of` names; empty where there is nothing to compare
};

enum class Better { kHigher, kLower };

struct Benchmark {
  std::string name;  // "group/what/parameter=value"
  std::string unit;
  Better better = Better::kLower;
  std::string of = {};  // what the ratio compares with, such as "memcpy"; empty: no reference
  std::function<absl::StatusOr<Prepared>(const Settings&)> prepare;
};

// The seconds that `body`, which returns an absl::Status, takes.
template <class Body>
absl::StatusOr<double> Seconds(Clock& clock, Body&& body) {
  const absl::Time begun = clock.Now();
  TDOCK_RETURN_IF_ERROR(body());
  return absl::ToDoubleSeconds(clock.Now() - begun);
}

}  // namespace tdock::bench
