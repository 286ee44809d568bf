// What a run needs from its environment.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "dock/local/shared_dock.h"
#include "tdock/local_dock.h"
#include "trainer/run_log/progress.h"
#include "trainer/stages/remote_stages.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

using OpenSharedDock = std::function<absl::StatusOr<std::unique_ptr<dock::SharedDock>>(const dock::SharedDockOptions&)>;

// Everything must outlive the run.
struct RunContext {
  Env& env;
  Clock& clock;
  Progress& progress;
  // Set by another thread, or a signal, to end the run after its optimizer step, or while it waits for another process.
  const std::atomic<bool>* stop = nullptr;
  // Gets lines for people: what was left out of the data, what looks wrong, what was not saved. Thread-safe.
  std::function<void(const std::string&)> log = [](const std::string&) {};
  // Set by another thread, or a signal, to save the run after its step; the run unsets it.
  std::atomic<bool>* save = nullptr;
  // What may have changed since the run was saved that it goes on from: see CheckFingerprint().
  std::vector<std::string> allow_changed = {};

  // For runs whose dock is theirs alone.
  std::function<std::unique_ptr<Dock>(Clock&)> make_dock = [](Clock& of_run) {
    return MakeLocalDock({.clock = &of_run});
  };
  // The dock of a run of several processes, instead; null: make_dock makes it.
  Dock* run_dock = nullptr;
  // Stages that other processes of the run carry out; null: none.
  RemoteStages* remote = nullptr;
  // See RunParts.
  std::function<TrainingRanks(const std::string& role)> training_ranks = [](const std::string&) {
    return TrainingRanks();
  };
  // For runs that share their dock with other processes: dock::OpenSharedDock(), which compiles a tenth as long as a
  // trainer, and so is linked only to who needs it. Null: such a run is refused.
  OpenSharedDock open_shared_dock = nullptr;

  // Called where a stage does not end although it must: see StageThreads::Options.
  std::function<void(const absl::Status&)> give_up = [](const absl::Status&) {};

  // When the run must end; set by PrepareRun().
  absl::Time stop_at = absl::InfiniteFuture();

  // Cancelled once the run must end. Thread-safe.
  absl::Status CheckStop() const {
    if (stop != nullptr && *stop) return absl::CancelledError("interrupted");
    if (clock.Now() < stop_at) return absl::OkStatus();
    return absl::CancelledError("the time of trainer.max_minutes is over");
  }
};

}  // namespace tdock::trainer
