#include "trainer/distributed/placement.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "runtime/mesh/resource_pool.h"

namespace tdock::trainer {
namespace {

using runtime::ResourcePool;
using runtime::ResourcePools;

// "NAME=VALUE", as BindResources() has checked.
std::pair<std::string, std::string> Named(const std::string& item) {
  return absl::StrSplit(item, absl::MaxSplits('=', 1));
}

std::vector<ResourcePool> PoolsOf(const ResourcesSection& resources) {
  std::vector<ResourcePool> pools;
  for (const std::string& item : resources.pools) {
    const auto [name, counts] = Named(item);
    ResourcePool pool{.name = name};
    for (const absl::string_view count : absl::StrSplit(counts, '+')) {
      int64_t processes = 0;
      if (absl::SimpleAtoi(count, &processes)) pool.processes_per_node.push_back(processes);
    }
    pools.push_back(std::move(pool));
  }
  return pools;
}

// A pool for each process, without which it would have nothing to do.
absl::Status CheckAllUsed(const ResourcePools& pools, const std::string& asked) {
  std::vector<int64_t> idle;
  for (int64_t rank = 0; rank < pools.world_size(); ++rank) {
    if (!pools.PlaceOf(rank).ok()) idle.push_back(rank);
  }
  if (idle.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("resources.pools [", asked, "] leave ranks ",
                                                 absl::StrJoin(idle, ", "), " of ", pools.world_size(),
                                                 " without a pool: start fewer processes, ", "or give the pools more"));
}

}  // namespace

absl::StatusOr<RanksOfRoles> Place(const RunConfig& config, const runtime::RankEnvironment& environment) {
  const ResourcesSection& resources = config.resources;
  if (config.trainer.dock.shared()) {
    return absl::InvalidArgumentError(
        "trainer.serve and trainer.dock are for runs of one process: the ranks of this one share a dock of its own");
  }
  if (environment.world_size % std::max(environment.local_world_size, 1) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("WORLD_SIZE=", environment.world_size, " is no multiple of ",
                                                   "LOCAL_WORLD_SIZE=", environment.local_world_size,
                                                   ": start as many processes on each machine"));
  }
  const int64_t of_machine = std::max(environment.local_world_size, 1);
  const int64_t machines = std::max<int64_t>(environment.world_size / of_machine, 1);
  const std::string asked = absl::StrJoin(resources.pools, ", ");
  absl::StatusOr<ResourcePools> pools = ResourcePools::Global(of_machine, machines, RolesOfProcesses());
  if (!resources.pools.empty()) {
    std::map<std::string, std::string> pool_of_role;
    for (const std::string& role : RolesOfProcesses()) pool_of_role[role] = Named(resources.pools.front()).first;
    for (const std::string& item : resources.roles) {
      const auto [role, pool] = Named(item);
      pool_of_role[role] = pool;
    }
    pools = ResourcePools::Of(std::vector<int64_t>(static_cast<size_t>(machines), of_machine), PoolsOf(resources),
                              std::move(pool_of_role));
  }
  if (!pools.ok()) {
    return Annotate(pools.status(),
                    absl::StrCat("resources.pools [", asked, "], of ", environment.world_size, " processes"));
  }
  TDOCK_RETURN_IF_ERROR(CheckAllUsed(*pools, asked));
  RanksOfRoles roles;
  for (const std::string& role : RolesOfProcesses()) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks, pools->RanksOfRole(role));
    for (const int64_t rank : ranks) roles[role].push_back(static_cast<int>(rank));
  }
  for (const char* trains : {"actor", "critic"}) {
    if (roles[trains].front() == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.roles: ", trains, " trains, in the process of rank 0: give it the pool with that rank"));
  }
  if (config.async.partial_rollout_max_split > 1 && roles["rollout"] != std::vector<int>{0}) {
    return absl::InvalidArgumentError(
        absl::StrCat("rollout.partial_rollout_max_split=", config.async.partial_rollout_max_split,
                     ": only rank 0 can go on ", "with answers that are on the dock in part: give the role rollout ",
                     "a pool of that rank alone (resources.pools, resources.roles)"));
  }
  if (config.servers.used() && roles["rollout"].size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.servers: one rank asks them, and the role rollout has ",
                                                   roles["rollout"].size(),
                                                   ": give it a pool of one rank (resources.pools, resources.roles)"));
  }
  return roles;
}

}  // namespace tdock::trainer
