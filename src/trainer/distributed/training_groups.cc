#include "trainer/distributed/training_groups.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/gloo_collective.h"

namespace tdock::trainer {
namespace {

// How the role trains; null if it does not.
const OptimSection* OptimOf(const StepShape& policy, const std::vector<ModelRole>& models, const std::string& role) {
  if (role == "actor") return &policy.optim;
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&role](const ModelRole& model) { return model.trained && model.name == role; });
  return found == models.end() ? nullptr : found->optim;
}

}  // namespace

absl::StatusOr<TrainingGroups> TrainingGroups::Open(Recipe& recipe, const runtime::RankEnvironment& environment,
                                                    const RanksOfRoles& roles, runtime::Rendezvous& rendezvous,
                                                    absl::Time deadline) {
  TrainingGroups groups;
  groups.timeout_ = absl::Seconds(recipe.config().resources.collective_timeout);
  const StepShape policy = recipe.shape();
  const std::vector<ModelRole> models = recipe.models();
  for (const char* role : {"actor", "critic"}) {
    const auto found = roles.find(role);
    const OptimSection* const optim = OptimOf(policy, models, role);
    if (found == roles.end() || found->second.size() < 2 || optim == nullptr) continue;
    std::vector<int> ranks = found->second;
    std::sort(ranks.begin(), ranks.end());
    const auto place = std::find(ranks.begin(), ranks.end(), environment.rank);
    if (place == ranks.end()) continue;
    absl::StatusOr<std::unique_ptr<runtime::TensorCollective>> group =
        runtime::OpenGlooCollective({.rendezvous = rendezvous,
                                     .name = role,
                                     .rank = static_cast<int>(place - ranks.begin()),
                                     .size = static_cast<int>(ranks.size()),
                                     .host = environment.on_loopback() ? environment.master_addr : ""},
                                    deadline);
    if (!group.ok()) return Annotate(group.status(), absl::StrCat("connecting the ranks of ", role));
    groups.groups_[role] = *std::move(group);
    groups.zero_[role] = static_cast<Zero>(optim->zero_stage);
  }
  return groups;
}

TrainingRanks TrainingGroups::Of(const std::string& role) const {
  const auto found = groups_.find(role);
  if (found == groups_.end()) return {.timeout = timeout_};
  return {.group = found->second.get(), .zero = zero_.at(role), .timeout = timeout_};
}

}  // namespace tdock::trainer
