// A real group whose ranks are threads of the test.
#pragma once

#include <functional>

#include "runtime/collective/tensor/tensor_collective.h"

namespace tdock::runtime {

// Runs `body` on `size` threads of this process, each with its end of one Gloo group over loopback, and returns when
// all are over. A rank that returns leaves the group. Aborts, with the reason, if the group does not come about.
//
// Leave() at one rank also cuts the connections of the other threads with each other.
void RunOnRanks(int size, const std::function<void(TensorCollective&)>& body);

}  // namespace tdock::runtime
