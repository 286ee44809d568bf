// The groups of the ranks that train a model together: of the role "actor" those that train the policy, of "critic"
// those that train the critic.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "runtime/launch/rank_environment.h"
#include "runtime/rendezvous/rendezvous.h"
#include "trainer/distributed/stage_groups.h"
#include "trainer/loop/recipe.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

// The ends of this process. Thread-safe.
class TrainingGroups {
 public:
  TrainingGroups() = default;

  // Opens the groups of the roles that this rank has, where a role trains and has several ranks: over NCCL where each
  // of them has a GPU of its own, otherwise over Gloo; `log` is told if GPUs have to do with that. Ends early with an
  // error of `check`, and with what has failed at another rank. Those of all ranks
  // of the run are opened at the same time. Errors are those of runtime::OpenGlooCollective().
  static absl::StatusOr<TrainingGroups> Open(Recipe& recipe, const runtime::RankEnvironment& environment,
                                             const RanksOfRoles& roles, runtime::Rendezvous& rendezvous, Env& env,
                                             const std::function<void(const std::string&)>& log,
                                             const std::function<absl::Status()>& check, absl::Time deadline);

  // Whether this process trains with others.
  bool empty() const { return groups_.empty(); }
  // Of this run's role; without a group where this process trains alone, or not at all.
  TrainingRanks Of(const std::string& role) const;

 private:
  std::map<std::string, std::unique_ptr<runtime::TensorCollective>> groups_;
  std::map<std::string, Zero> zero_;
  absl::Duration timeout_ = absl::InfiniteDuration();
};

}  // namespace tdock::trainer
