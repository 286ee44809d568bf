// The stages that this process carries out, on rows that the run's controller has taken for them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "tdock/dock.h"
#include "trainer/distributed/stage_call.h"
#include "trainer/distributed/weight_transfer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/weight_feed.h"

namespace tdock::trainer {

// Thread-safe, for one call of a stage at a time.
class WorkerStages {
 public:
  // What a call tells those who wait for it, and they it.
  struct Signs {
    std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };  // its error ends the call
    std::function<void()> progress = [] {};                                      // it is getting on
  };
  // All outlive it. `stages` are those of the run's plan.
  WorkerStages(std::span<const std::unique_ptr<Stage>> stages, Dock& dock, Env& env);

  // Carries out the stage on the rows of the share, and puts what it writes under the controller's lease. NotFound if
  // this process does not have the stage; otherwise errors are the stage's and the dock's. May not throw.
  absl::StatusOr<ShareResult> Run(const StageShare& share, const Signs& signs);
  // What the stage is doing ends with Cancelled, when it next looks.
  void Interrupt(const std::string& stage);

 private:
  struct Served {
    Stage* stage;
    std::atomic<bool> interrupted = false;
  };
  absl::StatusOr<Rows> RowsOf(const Stage& stage, const StageShare& share);

  Dock& dock_;
  Env& env_;
  std::map<std::string, std::unique_ptr<Served>> stages_;
};

}  // namespace tdock::trainer
