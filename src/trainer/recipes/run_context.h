// What a run needs from its environment.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "trainer/run_log/progress.h"

namespace tdock::trainer {

// Everything must outlive the run.
struct RunContext {
  Env& env;
  Clock& clock;
  Progress& progress;
  const std::atomic<bool>* stop = nullptr;  // set by another thread to end the run before its next step

  // Cancelled once the run must end.
  absl::Status CheckStop() const {
    if (stop == nullptr || !*stop) return absl::OkStatus();
    return absl::CancelledError("interrupted");
  }
};

}  // namespace tdock::trainer
