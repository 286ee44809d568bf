#include "runtime/mesh/resource_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

constexpr int64_t kMostProcesses = int64_t{1} << 20;

using PoolOfRole = std::map<std::string, std::string>;

std::string Quoted(const std::vector<std::string>& names) {
  return absl::StrCat("'", absl::StrJoin(names, "', '"), "'");
}

std::string PoolText(const ResourcePool& pool) {
  return absl::StrCat("pool '", pool.name, "' [", absl::StrJoin(pool.processes_per_node, ", "), "]");
}

// "roles 'ref', 'rollout' ask for pool 'train' [8, 8]".
std::string Request(const ResourcePool& pool, const PoolOfRole& pool_of_role) {
  std::vector<std::string> roles;
  for (const auto& [role, name] : pool_of_role) {
    if (name == pool.name) roles.push_back(role);
  }
  if (roles.empty()) return PoolText(pool);
  return absl::StrCat(roles.size() == 1 ? "role " : "roles ", Quoted(roles), roles.size() == 1 ? " asks" : " ask",
                      " for ", PoolText(pool));
}

// What is wrong with the numbers of processes; empty if nothing is.
std::string NumbersMistake(std::span<const int64_t> processes) {
  int64_t sum = 0;
  for (const int64_t count : processes) {
    if (count < 1) return absl::StrCat("has a node of ", count, " processes; there must be at least one");
    if (count > kMostProcesses - sum) return absl::StrCat("has more than ", kMostProcesses, " processes");
    sum += count;
  }
  return sum == 0 ? "has no nodes" : "";
}

std::vector<std::string> Mistakes(const std::vector<int64_t>& nodes, const std::vector<ResourcePool>& pools,
                                  const PoolOfRole& pool_of_role) {
  std::vector<std::string> mistakes;
  if (const std::string mistake = NumbersMistake(nodes); !mistake.empty()) {
    mistakes.push_back(absl::StrCat("the cluster ", mistake));
  }
  std::set<std::string> names;
  for (const ResourcePool& pool : pools) {
    if (pool.name.empty()) {
      mistakes.emplace_back("a pool has no name");
    } else if (!names.insert(pool.name).second) {
      mistakes.push_back(absl::StrCat("pool '", pool.name, "' is given twice"));
    } else if (const std::string mistake = NumbersMistake(pool.processes_per_node); !mistake.empty()) {
      mistakes.push_back(absl::StrCat(PoolText(pool), " ", mistake));
    }
  }
  const std::vector<std::string> known(names.begin(), names.end());
  for (const auto& [role, pool] : pool_of_role) {
    if (names.contains(pool)) continue;
    mistakes.push_back(absl::StrCat("role '", role, "' asks for pool '", pool, "', which does not exist; there ",
                                    known.empty() ? "are none" : absl::StrCat("are ", Quoted(known))));
  }
  return mistakes;
}

// The node of each part of a pool, ascending where parts are equal.
struct Placement {
  std::vector<size_t> nodes = {};
  std::string shortage = {};  // empty if every part has a node
};

Placement Place(const ResourcePool& pool, const std::vector<int64_t>& free) {
  Placement placement;
  if (pool.processes_per_node.size() > free.size()) {
    placement.shortage =
        absl::StrCat("available ", free.size(), " is less than desired ", pool.processes_per_node.size(), " nodes");
    return placement;
  }
  std::set<size_t> used;
  for (const int64_t desired : pool.processes_per_node) {
    std::optional<size_t> best;
    int64_t available = 0;
    for (size_t node = 0; node < free.size(); ++node) {
      if (used.contains(node)) continue;
      available = std::max(available, free[node]);
      if (free[node] >= desired && (!best.has_value() || free[node] < free[*best])) best = node;
    }
    if (!best.has_value()) {
      placement.shortage = absl::StrCat("available ", available, " is less than desired ", desired, " on node ",
                                        used.size(), " of the pool");
      return placement;
    }
    used.insert(*best);
    placement.nodes.push_back(*best);
  }
  return placement;
}

absl::Status AllOf(const std::vector<std::string>& mistakes) {
  return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
}

}  // namespace

absl::StatusOr<ResourcePools> ResourcePools::Of(const std::vector<int64_t>& nodes,
                                                const std::vector<ResourcePool>& pools,
                                                const std::map<std::string, std::string>& pool_of_role) {
  std::vector<std::string> mistakes = Mistakes(nodes, pools, pool_of_role);
  if (!mistakes.empty()) return AllOf(mistakes);
  ResourcePools made;
  made.pool_of_role_.insert(pool_of_role.begin(), pool_of_role.end());
  std::vector<int64_t> first(nodes.size());  // global rank of each node
  std::exclusive_scan(nodes.begin(), nodes.end(), first.begin(), int64_t{0});
  for (size_t node = 0; node < nodes.size(); ++node) {
    made.places_.resize(made.places_.size() + static_cast<size_t>(nodes[node]),
                        {.pool = "", .node = static_cast<int64_t>(node)});
  }
  std::vector<int64_t> free = nodes;
  for (const ResourcePool& pool : pools) {
    const Placement placement = Place(pool, free);
    if (!placement.shortage.empty()) {
      mistakes.push_back(absl::StrCat(Request(pool, pool_of_role), ": ", placement.shortage));
      continue;
    }
    std::vector<int64_t>& ranks = made.ranks_[pool.name];
    for (size_t part = 0; part < placement.nodes.size(); ++part) {
      const size_t node = placement.nodes[part];
      for (int64_t local = 0; local < pool.processes_per_node[part]; ++local) {
        const int64_t rank = first[node] + nodes[node] - free[node]--;
        made.places_[static_cast<size_t>(rank)] = {pool.name, static_cast<int64_t>(node), local};
        ranks.push_back(rank);
      }
    }
    std::sort(ranks.begin(), ranks.end());
  }
  if (!mistakes.empty()) return AllOf(mistakes);
  return made;
}

absl::StatusOr<ResourcePools> ResourcePools::Global(int64_t processes_per_node, int64_t nodes,
                                                    std::span<const std::string> roles) {
  if (nodes < 1 || nodes > kMostProcesses) {
    return absl::InvalidArgumentError(absl::StrCat("a cluster has from 1 to ", kMostProcesses, " nodes, not ", nodes));
  }
  const std::vector<int64_t> all(static_cast<size_t>(nodes), processes_per_node);
  PoolOfRole pool_of_role;
  for (const std::string& role : roles) pool_of_role[role] = kGlobalPool;
  return Of(all, {{kGlobalPool, all}}, pool_of_role);
}

absl::StatusOr<std::vector<int64_t>> ResourcePools::RanksOfPool(absl::string_view pool) const {
  const auto ranks = ranks_.find(pool);
  if (ranks != ranks_.end()) return ranks->second;
  std::vector<std::string> names;
  names.reserve(ranks_.size());
  for (const auto& [name, unused] : ranks_) names.push_back(name);
  return absl::NotFoundError(absl::StrCat("there is no pool '", pool, "'; there are ", Quoted(names)));
}

absl::StatusOr<std::vector<int64_t>> ResourcePools::RanksOfRole(absl::string_view role) const {
  TDOCK_ASSIGN_OR_RETURN(const std::string pool, PoolOf(role));
  return RanksOfPool(pool);
}

absl::StatusOr<std::string> ResourcePools::PoolOf(absl::string_view role) const {
  const auto pool = pool_of_role_.find(role);
  if (pool != pool_of_role_.end()) return pool->second;
  std::vector<std::string> roles;
  roles.reserve(pool_of_role_.size());
  for (const auto& [name, unused] : pool_of_role_) roles.push_back(name);
  return absl::NotFoundError(absl::StrCat("there is no role '", role, "'; there are ", Quoted(roles)));
}

absl::StatusOr<ProcessPlace> ResourcePools::PlaceOf(int64_t rank) const {
  if (rank < 0 || rank >= world_size()) {
    return absl::OutOfRangeError(absl::StrCat("global rank ", rank, " of ", world_size()));
  }
  const ProcessPlace& place = places_[static_cast<size_t>(rank)];
  if (!place.pool.empty()) return place;
  return absl::NotFoundError(absl::StrCat("global rank ", rank, ", on node ", place.node, ", is in no pool"));
}

}  // namespace tdock::runtime
