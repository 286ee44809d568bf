// Stages: the steps of post-training, each of which takes rows from a dock and puts columns into it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/dock.h"

namespace tdock::train {

// The figures of one step, gathered while its stages run. Not thread-safe.
class StepMetrics {
 public:
  // The mean over all calls with this name, by weight.
  void Mean(const std::string& name, double value, double weight = 1.0);
  // The sum over all calls.
  void Sum(const std::string& name, double value);
  // `name`/mean, /max and /min over all values given. No values: nothing.
  void Distribution(const std::string& name, std::span<const float> values);
  void Max(const std::string& name, double value);
  void Min(const std::string& name, double value);

  std::map<std::string, double> Values() const;

 private:
  struct Ratio {
    double sum = 0, weight = 0;
  };
  std::map<std::string, Ratio> means_;
  std::map<std::string, double> others_;
};

struct StageOutput {
  // The columns that the stage writes, a row for each row that it was given, in their order. Empty where it writes
  // none.
  Batch columns;
  // The version of the weights that made them, where weights did.
  int64_t weights_version = kNoWeightsVersion;
};

struct StageContext {
  int64_t step;
  StepMetrics& metrics;
};

// Used by one thread at a time.
class Stage {
 public:
  virtual ~Stage() = default;

  // What the stage is to the dock: its name, what it reads and writes, rows or groups, its sampler.
  virtual const ConsumerOptions& consumer() const = 0;

  // May throw: the runner turns exceptions into errors.
  virtual absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) = 0;
};

// Runs stages on one partition of a dock. Errors name the stage and the rows that it was working on; the rows' lease is
// given back then. Not thread-safe.
class StageRunner {
 public:
  // Both must outlive the runner.
  StageRunner(Dock& dock, std::string partition) : dock_(dock), partition_(std::move(partition)) {}

  // Registers the stage as a consumer.
  absl::Status Add(const Stage& stage);

  // Takes `units` rows, or groups for a stage of groups, at once, runs the stage on them, and puts what it writes, or
  // completes them where it writes nothing. FailedPrecondition, with what is missing, where the units are not there: in
  // a program that runs its stages one after the other, nothing would ever bring them.
  //
  // A column that was written with a number that is not finite is Internal, and names the column and the row.
  absl::Status Run(Stage& stage, int64_t units, StageContext& context);

 private:
  absl::Status RunOn(Stage& stage, const Taken& taken, StageContext& context);

  Dock& dock_;
  const std::string partition_;
};

}  // namespace tdock::train
