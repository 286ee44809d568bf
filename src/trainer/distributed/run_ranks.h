// A run of several processes, each with a rank: that of rank 0 is the controller, which has the run; the
// others carry out stages for it, or together with it those that train.
//
//   rank 0: the run, its dock, stages that train            ranks 1 …: rollout, reference, rewards, training
//        │ calls: rows by their ids ────────────────────────────► │
//        │ dock: columns, weights   ◄────────────────────────────►│
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "dock/local/shared_dock.h"
#include "runtime/control/processes.h"
#include "runtime/launch/rank_environment.h"
#include "runtime/rendezvous/rendezvous.h"
#include "trainer/distributed/stage_groups.h"
#include "trainer/distributed/training_groups.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/run_context.h"

namespace tdock::trainer {

// The controller's side. Used by one thread.
class RunRanks {
 public:
  // Waits until all ranks have joined. InvalidArgument for pools and roles that this many ranks cannot have; errors of
  // a rank, or of one that does not come, are those of runtime::Controller. All ranks end with the same.
  static absl::StatusOr<std::unique_ptr<RunRanks>> Open(Recipe& recipe, const runtime::RankEnvironment& environment,
                                                        const RunContext& context);
  ~RunRanks();

  // Lets a run use them: to be called before it is prepared.
  void AddTo(RunContext& context);
  // Waits until the others can carry out their stages, once the run is prepared, and those that train with this one are
  // where it is: FailedPrecondition names ranks with other weights.
  absl::Status AwaitReady();
  // The others end with this.
  void End(const absl::Status& status);

 private:
  RunRanks(Recipe& recipe, const runtime::RankEnvironment& environment, const RunContext& context)
      : recipe_(recipe), environment_(environment), context_(context) {}

  absl::Status Start();
  absl::Status Meet();
  // A line of another rank.
  void LogOf(int rank, const std::string& line) const;

  Recipe& recipe_;
  const runtime::RankEnvironment environment_;
  const RunContext context_;
  std::unique_ptr<runtime::Rendezvous> rendezvous_;
  std::unique_ptr<dock::SharedDock> dock_;
  TrainingGroups training_;
  std::unique_ptr<StageGroups> stages_;
  std::unique_ptr<runtime::Controller> controller_;  // its notices go to the stages
};

// Any other rank: joins, serves its stages, and returns when the run is over: OK, or why it failed.
absl::Status ServeRun(Recipe& recipe, const runtime::RankEnvironment& environment, const RunContext& context);

}  // namespace tdock::trainer
