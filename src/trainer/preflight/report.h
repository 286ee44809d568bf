// A preflight as text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "text/tokenizer.h"
#include "trainer/preflight/preflight.h"

namespace tdock::trainer {

// The derived numbers, aligned; a line each.
std::string NumbersText(const NumberReport& numbers);

// Everything else: the data, `shown` samples, the memory, the probe, the warnings. `terminal`: see RenderingOptions.
absl::StatusOr<std::string> ReportText(const PreflightReport& report, const text::Tokenizer& tokenizer,
                                       const RolloutSection* rollout, bool terminal, size_t shown = 3);

// A few lines for the log of a run, without the warnings of the data, which were logged when it was opened.
std::string SummaryText(const PreflightReport& report);

}  // namespace tdock::trainer
