// What this process trains together with others, as the run's controller asks for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/value.h"
#include "tdock/dock.h"
#include "trainer/checkpoint/state.h"
#include "trainer/distributed/stage_call.h"
#include "trainer/distributed/training_groups.h"
#include "trainer/loop/recipe.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// Of the weights that a stage trains and of what else it begins with. Reads all weights once.
std::string DigestOf(const Stage& stage, const model::Decoder& decoder);

// Serves the methods of one session.
class WorkerTraining {
 public:
  struct Options {
    Env& env;
    Dock& dock;  // of the run
    Policy& policy;
    std::map<std::string, RoleModel>& models;
    const TrainingGroups& groups;
    std::function<absl::Status()> check_stop;
    std::function<void(const std::string& stage)> progress;
    std::function<void()> on_weights;  // called when the policy has other weights, which are whole
  };
  // Everything outlives it. Those of the stages that train are all carried out together with other ranks.
  WorkerTraining(const Options& options, std::span<const std::unique_ptr<Stage>> stages);

  absl::Status AddTo(runtime::MethodTable& methods);

 private:
  struct Trained {
    Stage* stage;
    Policy* policy;  // that it trains
    TrainingRanks ranks;
    int64_t step = 0;  // of the last call
  };
  using Place = std::pair<int64_t, int64_t>;  // of a checkpoint: step and part

  static absl::StatusOr<Place> PlaceIn(const runtime::Value& call);
  absl::StatusOr<runtime::Value> Train(const runtime::Value& call);
  absl::StatusOr<ShareResult> Compute(Trained& trained, const StageShare& share);
  // This rank's part of what all ranks of the stage do, which the call names.
  absl::StatusOr<Trained*> DoTogether(const runtime::Value& call, absl::Status (Stage::*part)());
  absl::StatusOr<runtime::Value> GatherWeights(const runtime::Value& call);
  absl::StatusOr<runtime::Value> SwapAverage(const runtime::Value& call);
  absl::StatusOr<runtime::Value> LoadState(const runtime::Value& call);
  absl::StatusOr<runtime::Value> SnapshotState(const runtime::Value& call) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<runtime::Value> WriteState(const runtime::Value& call) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<Trained*> Find(const std::string& stage);

  const Options options_;
  std::map<std::string, Trained> trained_;  // by stage
  Mutex mu_;
  std::shared_ptr<const State> snapshot_ TDOCK_GUARDED_BY(mu_);  // null: none, or it was written
  Place snapshot_place_ TDOCK_GUARDED_BY(mu_) = {};
};

}  // namespace tdock::trainer
