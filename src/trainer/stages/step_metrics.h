// The metrics of one step.
#pragma once

#include <map>
#include <span>
#include <string>

#include "core/base/mutex.h"
#include "trainer/checkpoint/state.h"

namespace tdock::trainer {

// Gathers what stages report while they run. Thread-safe; but sums of several threads are rounded in the order of the
// calls, so threads that share work each fill metrics of their own, for Add() to put together in a fixed order.
class StepMetrics final : public Stateful {
 public:
  // The mean over all calls with this name, by weight. Calls of weight 0 alone leave no metric.
  void Mean(const std::string& name, double value, double weight = 1.0) TDOCK_EXCLUDES(mu_);
  // The sum over all calls.
  void Sum(const std::string& name, double value) TDOCK_EXCLUDES(mu_);
  // `name`/mean, /max and /min over all values given. No values: nothing.
  void Distribution(const std::string& name, std::span<const float> values);
  // `name`/mean and `name`/std over all calls, by the number of values.
  void Spread(const std::string& name, double value) TDOCK_EXCLUDES(mu_);
  void Max(const std::string& name, double value) TDOCK_EXCLUDES(mu_);
  void Min(const std::string& name, double value) TDOCK_EXCLUDES(mu_);

  // Everything that `other` holds, which must not be this.
  void Add(const StepMetrics& other) TDOCK_EXCLUDES(mu_);

  // The same, and leaves nothing here.
  void MoveTo(StepMetrics& other) TDOCK_EXCLUDES(mu_);

  std::map<std::string, double> Values() const TDOCK_EXCLUDES(mu_);

  void Save(State& state) const override TDOCK_EXCLUDES(mu_);
  // In addition to what there is.
  absl::Status Load(const State& state) override TDOCK_EXCLUDES(mu_);

 private:
  struct Ratio {
    double sum = 0, weight = 0;
  };
  struct Figures {
    std::map<std::string, Ratio> means;
    std::map<std::string, Ratio> squares;  // by the names whose /mean is that of the values
    std::map<std::string, double> sums, greatest, least;
  };
  Figures Copy() const TDOCK_EXCLUDES(mu_);
  void AddFigures(const Figures& more) TDOCK_EXCLUDES(mu_);

  mutable Mutex mu_;
  Figures figures_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
