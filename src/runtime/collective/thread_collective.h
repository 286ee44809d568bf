// A group whose ranks are threads of this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/collective.h"
#include "tdock/clock.h"

namespace tdock::runtime {

// One end for each of `size` ≥ 1 ranks, each for a thread of its own. A broadcast shares the root's bytes. Every
// operation returns only when all ranks have come to it, at all of them or at none. `name` is for errors; `clock`, by
// which deadlines go, outlives the group.
std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size, const std::string& name,
                                                               Clock& clock = Clock::Real());

}  // namespace tdock::runtime
