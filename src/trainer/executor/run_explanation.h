// What a run does at one moment, in words and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::trainer {

struct StageExplanation {
  std::string name = {};
  enum class Does { kNothing, kWaits, kWorks } does = Does::kNothing;
  absl::Duration since = {};     // that it has worked or waited for
  absl::Duration progress = {};  // since the last sign of it, while it works
  int64_t rows = 0;              // that it works on
  std::string which = {};        // of them, where that is known: "8 rows between 32 and 39"
  bool external = false;         // another process carries it out
  // Of the stage's consumer; nothing for a lane that is no stage, such as validation.
  std::optional<ConsumerStatus> counts = {};
  // What the dock says of what it waits for.
  std::string dock = {};
};

struct RunExplanation {
  std::string recipe = {};
  int64_t step = 0;   // that is being carried out
  int64_t steps = 0;  // of the run; 0: as many as there is data for
  std::string phase = {};
  absl::Duration since = {};  // that it has been in the phase
  // Of the last step that reported.
  std::optional<double> tokens_per_second = {};
  std::optional<double> staleness_mean = {}, staleness_max = {};
  int64_t rows = 0;     // on the dock
  bool shared = false;  // with other processes: the dock
  std::string dock_error = {};
  std::vector<StageExplanation> stages = {};
};

// A line for the run, then each stage with what it does and, below it, its rows and what it waits for. What
// the dock says is in it as it is.
std::string ToText(const RunExplanation& explanation);

// {"recipe", "step", "steps", "phase", "phase_seconds", "tokens_per_second": number or null, "staleness": {"mean",
// "max"} or null, "rows", "shared", "stages": [{"name", "does": "works", "waits" or "nothing", "seconds",
// "progress_seconds": number or null, "rows", "which", "external", "counts": {"waiting", "ready", "leased", "done",
// "quarantined"} or null, "dock"}]}, and "dock_error" where the dock did not answer; a newline at the end.
std::string ToJson(const RunExplanation& explanation);

}  // namespace tdock::trainer
