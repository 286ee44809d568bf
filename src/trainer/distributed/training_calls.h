// The stages that ranks carry out together because they train, as the controller, one of them, sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "runtime/control/processes.h"
#include "tdock/dock.h"
#include "trainer/distributed/rank_call.h"
#include "trainer/distributed/stage_call.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/remote_stages.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

// Run() is thread-safe for different stages; the others are called while none runs.
class TrainingCalls {
 public:
  struct Options {
    runtime::Controller& controller;
    Dock& dock;
    Env& env;
    std::function<TrainingRanks(const std::string& role)> groups;
    std::function<void(const RankSpan&)> on_ended;  // a call of a rank has ended well
  };
  explicit TrainingCalls(const Options& options) : options_(options) {}

  // Before all that follows: a stage that trains `policy`, and the ranks that have it, 0 among them, ascending.
  void Add(Stage& stage, const Policy& policy, const std::vector<int>& ranks);
  bool Has(absl::string_view stage) const { return trained_.find(stage) != trained_.end(); }
  // Whether this rank, or that one, trains the policy of the role.
  bool Trains(absl::string_view role, int rank) const;

  // All ranks of the stage compute with all of the rows; this one puts what comes of it once all of them could. Their
  // figures are the same, and those of this one count. An error of a rank ends the group, but not that all were told to
  // stop.
  absl::StatusOr<StageRunner::Round> Run(Stage& stage, const std::string& partition, const Taken& taken,
                                         StageContext& context) TDOCK_EXCLUDES(on_gpu_);

  // The other ranks load the checkpoint in `folder`, if it is not empty. FailedPrecondition names those that have
  // another one there than this one, or then have other weights or another state.
  absl::Status Begin(const std::string& folder);
  // See RemoteStages; of one role.
  absl::Status PrepareWeights(absl::string_view role) TDOCK_EXCLUDES(gathering_);
  absl::Status SwapAverage(Stage& stage) TDOCK_EXCLUDES(gathering_);
  absl::StatusOr<RemoteStages::WriteParts> SnapshotParts(int64_t step, int64_t part);

 private:
  absl::StatusOr<StageRunner::Round> RunNow(Stage& stage, const std::string& partition, const Taken& taken,
                                            StageContext& context);
  struct Trained {
    Stage* stage;
    const Policy* policy;
    std::vector<int> others = {};  // ranks beside this one
    bool whole = true;             // the weights at this rank
    int64_t step = 0;              // of the last call
  };
  // The answers of the other ranks, for which the rows are kept.
  absl::StatusOr<std::vector<RankCall::Answer>> AwaitOthers(RankCall& call, const std::string& partition, LeaseId lease,
                                                            absl::Time deadline);
  // `own` at this rank, and at the others `method`, which takes the stage; an error of a rank ends the group.
  absl::Status AtAll(const std::string& name, const Trained& trained, const StageMethod& method,
                     const std::function<absl::Status()>& own);
  static absl::Status CompareCheckpoints(const std::string& folder, const std::string& own,
                                         const std::vector<RankCall::Answer>& answers);
  static absl::Status CompareStages(const std::map<std::string, std::string>& own,
                                    const std::vector<RankCall::Answer>& answers);
  absl::Status CheckAlike(const RankCall::Answer& answer) const;
  absl::Status WriteParts(const std::string& folder, int64_t step, int64_t part);
  // Of all of them: this one first.
  std::vector<int> Ranks() const;

  const Options options_;
  std::map<std::string, Trained, std::less<>> trained_;  // by stage
  Mutex gathering_, on_gpu_;
};

}  // namespace tdock::trainer
