// Which ranks of a run have which roles.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/distributed/stage_groups.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// The ranks of each role of `resources`. InvalidArgument names a pool, with what it asks for and what there is, if the
// pools together do not have as many processes as there are ranks, on each machine; and if rank 0, which trains, is not
// of the pool of `actor`.
absl::StatusOr<RanksOfRoles> Place(const ResourcesSection& resources, const runtime::RankEnvironment& environment);

}  // namespace tdock::trainer
