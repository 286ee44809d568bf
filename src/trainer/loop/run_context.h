// What a run needs from its environment.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "dock/shared/shared_dock.h"
#include "trainer/run_log/progress.h"

namespace tdock::trainer {

using OpenSharedDock = std::function<absl::StatusOr<std::unique_ptr<dock::SharedDock>>(const dock::SharedDockOptions&)>;

// Everything must outlive the run.
struct RunContext {
  Env& env;
  Clock& clock;
  Progress& progress;
  // Set by another thread to end the run before its next step, or while it waits for another process.
  const std::atomic<bool>* stop = nullptr;
  // Gets lines for people about what was read: what was left out, what looks wrong.
  std::function<void(const std::string&)> log = [](const std::string&) {};

  // For runs that share their dock with other processes.
  OpenSharedDock open_shared_dock = dock::OpenSharedDock;

  // Cancelled once the run must end.
  absl::Status CheckStop() const {
    if (stop == nullptr || !*stop) return absl::OkStatus();
    return absl::CancelledError("interrupted");
  }
};

}  // namespace tdock::trainer
