// Stages on replicas of several ranks (runtime/replica/replica.h), which hold parts of one model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/replica/replica.h"
#include "tdock/dock.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// At one rank; all ranks of the replica make the same calls. Each rank has a stage of its own, which is given the same
// rows, computes its part with the other ranks, and returns the same columns; those of the rank that puts count, which
// is in the last pipeline stage: others may return zeros in their place. Which groups are dropped or requeued must be
// the same. Not thread-safe.
class ReplicaRunner {
 public:
  // All outlive it. The dock is the replica's.
  ReplicaRunner(runtime::Replica& replica, Dock& dock, std::string partition)
      : replica_(replica), partition_(std::move(partition)), runner_(dock, partition_) {}

  // Registers the stage as a consumer with a share for each replica. Every replica does so.
  absl::Status Add(const Stage& stage);

  struct Round {
    runtime::Replica::Outcome outcome = runtime::Replica::Outcome::kDone;
    StageRunner::Round rows = {};  // as the rank that put them counts
  };
  struct Request {
    // Rows, or groups for a stage of groups, as in TakeRequest.
    int64_t min = 1, max = 1;
    absl::Time deadline = absl::InfinitePast();
  };
  // Takes rows of this replica's share, runs the stage on them at every rank, and puts what it wrote once, as
  // StageRunner::RunTaken() does. Requeued units are ready again. Errors are those of Replica::Run(), and name the
  // stage. `context` may renew the lease, and publish, at every rank; the one that puts does it.
  absl::StatusOr<Round> Run(Stage& stage, const Request& request, StageContext& context);

  absl::StatusOr<bool> AllConsumed(const Stage& stage) {
    return replica_.AllConsumed(partition_, stage.consumer().name);
  }

 private:
  runtime::Replica& replica_;
  const std::string partition_;
  StageRunner runner_;
};

}  // namespace tdock::trainer
