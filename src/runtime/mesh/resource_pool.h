// Pools of processes, and which roles run in them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::runtime {

inline constexpr char kGlobalPool[] = "global_pool";

struct ResourcePool {
  std::string name = {};
  // {8, 8}: 8 on each of two nodes.
  std::vector<int64_t> processes_per_node = {};
};

// Where a process is.
struct ProcessPlace {
  std::string pool = {};
  int64_t node = 0;        // of the cluster
  int64_t local_rank = 0;  // among the processes of the pool on this node

  friend bool operator==(const ProcessPlace&, const ProcessPlace&) = default;
};

// The processes of a cluster, divided into pools. Global ranks are numbered by node, as torchrun numbers them:
//
//   nodes {4, 4}                  global rank   0 1 2 3 | 4 5 6 7
//   pool "train" {2, 2}           train         0 1     | 2 3
//   pool "rollout" {2, 2}         rollout           0 1 |     2 3
//
// Pools are placed in the order given, each of their parts on another node: the one with the least free processes that
// suffice, of equal ones the first. So the ranks of a pool are the same whenever it is made from the same numbers.
// Roles of one pool are colocated: they share its processes.
//
// An immutable value; thread-safe. NotFound for a pool or a role that does not exist.
class ResourcePools {
 public:
  // `nodes`: how many processes each node has. InvalidArgument, which lists every pool that is short of processes with
  // its roles, and every other mistake: numbers that are not positive, names twice, roles of unknown pools.
  static absl::StatusOr<ResourcePools> Of(const std::vector<int64_t>& nodes, const std::vector<ResourcePool>& pools,
                                          const std::map<std::string, std::string>& pool_of_role);
  // The default: one pool, "global_pool", of all processes, for every role.
  static absl::StatusOr<ResourcePools> Global(int64_t processes_per_node, int64_t nodes,
                                              std::span<const std::string> roles);

  // Of all nodes.
  int64_t world_size() const { return static_cast<int64_t>(places_.size()); }

  // Global ranks, ordered by node: element i is rank i of the pool.
  absl::StatusOr<std::vector<int64_t>> RanksOfPool(absl::string_view pool) const;
  absl::StatusOr<std::vector<int64_t>> RanksOfRole(absl::string_view role) const;
  absl::StatusOr<std::string> PoolOf(absl::string_view role) const;

  // NotFound for a rank that no pool has; OutOfRange for one that does not exist.
  absl::StatusOr<ProcessPlace> PlaceOf(int64_t rank) const;

 private:
  ResourcePools() = default;

  // By global rank; without a pool if no pool has it.
  std::vector<ProcessPlace> places_;
  std::map<std::string, std::vector<int64_t>, std::less<>> ranks_;  // by pool
  std::map<std::string, std::string, std::less<>> pool_of_role_;
};

}  // namespace tdock::runtime
