// The validations of a run: before its first step, every few steps, and after its last.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/state.h"
#include "trainer/executor/timeline.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/sections.h"
#include "trainer/loop/stop_rule.h"
#include "trainer/run_log/run_directory.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Its state is what the validations have said so far. Used by one thread at a time.
class RunValidation final : public Stateful {
 public:
  // What it is given must outlive it. trainer.stop_when is valid.
  RunValidation(const TrainerSection& section, PhaseMeter& meter, Timeline& timeline);

  // Whether the run validates after this step; step 0 is before the first.
  bool IsDueAfter(int64_t step) const;

  // Adds to `metrics` what the evaluations say after this step, and returns the answers to record. InvalidArgument
  // after step 0 if the rule that ends the run waits for what they do not measure. May throw.
  absl::StatusOr<std::vector<Answer>> Run(int64_t step, std::span<const std::unique_ptr<Evaluation>> evaluations,
                                          StepMetrics& metrics);

  // Of the validation before the first step, and of the last one; empty where there was none.
  const Metrics& first() const { return first_; }
  const Metrics& last() const { return last_; }
  // Whether the last one meets the rule that ends the run.
  bool MeetsStopRule() const { return stop_rule_.has_value() && stop_rule_->IsMet(last_); }

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

 private:
  const TrainerSection& section_;
  PhaseMeter& meter_;
  Timeline& timeline_;
  const std::optional<StopRule> stop_rule_;
  Metrics first_, last_;
};

}  // namespace tdock::trainer
