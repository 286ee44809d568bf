#include "trainer/distributed/training_groups.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "model/decoder/device.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/collective/nccl/nccl_collective.h"

namespace tdock::trainer {
namespace {

using LogLine = std::function<void(const std::string&)>;

// How the role trains; null if it does not.
const OptimSection* OptimOf(const StepShape& policy, const std::vector<ModelRole>& models, const std::string& role) {
  if (role == "actor") return &policy.optim;
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&role](const ModelRole& model) { return model.trained && model.name == role; });
  return found == models.end() ? nullptr : found->optim;
}

// The ranks of a role, of which this process is one.
struct RankOfGroup {
  std::string role = {};
  int rank = 0, size = 1;
  at::Device device;  // of this one
};

// Of the ranks of a group, which GPU each computes on: "HOST cuda:N".
absl::StatusOr<std::vector<std::string>> DevicesOf(const RankOfGroup& together, runtime::Rendezvous& rendezvous,
                                                   absl::Time deadline) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const auto key = [&](int rank) { return absl::StrCat("device/", together.role, "/", rank); };
  TDOCK_RETURN_IF_ERROR(rendezvous.Publish(key(together.rank), absl::StrCat(host, " ", together.device.str())));
  std::vector<std::string> devices;
  for (int rank = 0; rank < together.size; ++rank) {
    TDOCK_ASSIGN_OR_RETURN(devices.emplace_back(), rendezvous.Await(key(rank), deadline - absl::Now()));
  }
  return devices;
}

// Why NCCL cannot connect them; empty if it can.
std::string WhyNotNccl(const std::vector<std::string>& devices) {
  std::set<std::string> different;
  for (const std::string& device : devices) {
    if (!absl::StrContains(device, " cuda:")) return "not all of them have a GPU";
    if (!different.insert(device).second) return absl::StrCat(device, " is that of two ranks");
  }
  return runtime::HasNccl() ? "" : "this build has no NCCL";
}

absl::StatusOr<std::unique_ptr<runtime::TensorCollective>> Connect(const RankOfGroup& together,
                                                                   const runtime::RankEnvironment& environment,
                                                                   runtime::Rendezvous& rendezvous,
                                                                   absl::Duration timeout, const LogLine& log,
                                                                   absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> devices, DevicesOf(together, rendezvous, deadline));
  const std::string why_not = WhyNotNccl(devices);
  if (why_not.empty()) {
    return runtime::OpenNcclCollective({.rendezvous = rendezvous,
                                        .name = together.role,
                                        .rank = together.rank,
                                        .size = together.size,
                                        .device = together.device,
                                        .timeout = timeout},
                                       deadline);
  }
  if (together.device.is_cuda() && together.rank == 0) {
    log(absl::StrCat("the ranks of ", together.role,
                     " send each other tensors through the memory of the host, not from ", "GPU to GPU: ", why_not));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::string host, runtime::AddressTowardsRank0(environment));
  return runtime::OpenGlooCollective(
      {.rendezvous = rendezvous, .name = together.role, .rank = together.rank, .size = together.size, .host = host},
      deadline);
}

}  // namespace

absl::StatusOr<TrainingGroups> TrainingGroups::Open(Recipe& recipe, const runtime::RankEnvironment& environment,
                                                    const RanksOfRoles& roles, runtime::Rendezvous& rendezvous,
                                                    const LogLine& log, absl::Time deadline) {
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
    TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(recipe.config().device));
    const RankOfGroup together{.role = role,
                               .rank = static_cast<int>(place - ranks.begin()),
                               .size = static_cast<int>(ranks.size()),
                               .device = device};
    absl::StatusOr<std::unique_ptr<runtime::TensorCollective>> group =
        Connect(together, environment, rendezvous, groups.timeout_, log, deadline);
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
