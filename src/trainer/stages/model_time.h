// How much of a stage's time the model takes.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Adds the seconds from its making to its end to timing_model_s/STAGE. The metrics must outlive it.
class ModelTime {
 public:
  ModelTime(const std::string& stage, StepMetrics& metrics) : stage_(stage), metrics_(metrics) {}
  ~ModelTime() { Add(stage_, absl::Now() - begun_, metrics_); }
  ModelTime(const ModelTime&) = delete;
  ModelTime& operator=(const ModelTime&) = delete;

  static void Add(const std::string& stage, absl::Duration took, StepMetrics& metrics) {
    metrics.Sum(absl::StrCat("timing_model_s/", stage), absl::ToDoubleSeconds(took));
  }

 private:
  const std::string stage_;
  StepMetrics& metrics_;
  const absl::Time begun_ = absl::Now();
};

}  // namespace tdock::trainer
