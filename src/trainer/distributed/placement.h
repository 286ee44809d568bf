// Which ranks of a run have which roles.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/distributed/stage_groups.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// The ranks of each role, as the section `resources` says. InvalidArgument names the pools that are short of processes,
// with what they ask for and what there is, and processes without a pool; roles that train and do not have rank 0; and
// partial rollouts, which only rank 0 can go on with, on other ranks.
absl::StatusOr<RanksOfRoles> Place(const RunConfig& config, const runtime::RankEnvironment& environment);

}  // namespace tdock::trainer
