// A process of a run that carries out some of its stages, for the one with the run.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "core/base/workers.h"
#include "runtime/control/processes.h"
#include "tdock/dock.h"
#include "trainer/distributed/stage_groups.h"
#include "trainer/distributed/training_groups.h"
#include "trainer/distributed/weight_transfer.h"
#include "trainer/distributed/worker_stages.h"
#include "trainer/distributed/worker_training.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {

class RunWorker {
 public:
  struct Options {
    Env& env;
    Dock& dock;  // of the run
    runtime::WorkerSession& session;
    int rank = 1;
    RanksOfRoles roles = {};
    const TrainingGroups& training;
    int64_t total_steps = 0;  // for schedules, where this rank trains
    std::function<void(const std::string&)> log = [](const std::string&) {};
  };
  // Everything outlives it; the recipe's plan is made of the inputs.
  RunWorker(Recipe& recipe, RunInputs inputs, const Options& options);

  // Makes the stages, and keeps those of this rank. May throw.
  absl::Status Prepare();
  // Serves until the controller ends the session.
  absl::Status Serve();

 private:
  absl::Status UpdateWeights(int64_t version);
  void ServeOwnWeights();
  absl::Status AddMethods(runtime::MethodTable& methods);
  void ShowProgress(const std::string& stage) TDOCK_EXCLUDES(mu_);

  Recipe& recipe_;
  const RunConfig& config_;
  RunInputs inputs_;
  const Options options_;
  Workers workers_;
  Policy policy_;
  std::map<std::string, RoleModel> models_;
  const bool serves_;  // answers are sampled with what was received, while more may come
  WeightFeed served_;
  std::atomic<bool> whole_ = true;  // the weights of the policy: not while some arrive, or after that failed
  Plan plan_;                       // refers to what is above
  std::unique_ptr<WorkerStages> stages_;
  std::unique_ptr<WorkerTraining> training_;
  WeightReceiver receiver_;
  Mutex mu_;
  std::map<std::string, absl::Time> shown_ TDOCK_GUARDED_BY(mu_);  // the last sign of progress, by stage
};

}  // namespace tdock::trainer
