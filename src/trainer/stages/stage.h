// Stages: the steps of post-training, which take rows from a dock and put columns into it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/dock.h"

namespace tdock::trainer {

// The metrics of one step, gathered while its stages run. Not thread-safe.
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
  // The columns that the stage writes, with a row for each input row, in their order. Empty if it writes none.
  Batch columns;
  // The version of the weights that made them, if weights did.
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

  // The options of the stage's consumer: its name, what it reads and writes, rows or groups, its sampler.
  virtual const ConsumerOptions& consumer() const = 0;

  // May throw: the runner turns exceptions into errors.
  virtual absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) = 0;
};

// Runs stages on one partition of a dock. Errors name the stage and the rows that it was working on, whose lease is
// then given back. Not thread-safe.
class StageRunner {
 public:
  // Both must outlive the runner.
  StageRunner(Dock& dock, std::string partition) : dock_(dock), partition_(std::move(partition)) {}

  // Registers the stage as a consumer.
  absl::Status Add(const Stage& stage);

  // Takes `units` rows, or groups for a stage of groups, in one call, runs the stage on them, and puts what it writes,
  // or completes them if it writes nothing. FailedPrecondition, with what is missing, if the units are not ready: in a
  // program that runs its stages in sequence, they would never come.
  //
  // Internal, naming the column and the row, if the stage writes a number that is not finite.
  absl::Status Run(Stage& stage, int64_t units, StageContext& context);

 private:
  absl::Status RunOn(Stage& stage, const Taken& taken, StageContext& context);

  Dock& dock_;
  const std::string partition_;
};

}  // namespace tdock::trainer
