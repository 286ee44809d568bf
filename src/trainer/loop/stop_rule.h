// A condition on a metric that ends training.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {

struct StopRule {
  std::string metric;
  bool at_least = true;  // otherwise at most
  double bound = 0;

  // False where the metric was not measured.
  bool IsMet(const Metrics& metrics) const;
};

// "METRIC >= NUMBER" or "METRIC <= NUMBER"; nothing for an empty text. InvalidArgument shows the form.
absl::StatusOr<std::optional<StopRule>> ParseStopRule(absl::string_view text);

}  // namespace tdock::trainer
